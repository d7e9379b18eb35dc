"""An embedded Kinesis with enhanced fan-out."""

from fanout._exports import naming_extras, require

with naming_extras("the embedded Kinesis"):
    require("moto")

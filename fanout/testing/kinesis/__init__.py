"""An embedded Kinesis with enhanced fan-out."""

"""Search for failures: `python -m tests.provers sim`, `crash`, `cluster`, `members`, `tables`."""

from __future__ import annotations

import typer

from tests.provers.cluster.command import cluster
from tests.provers.crash.command import crash
from tests.provers.members.command import members
from tests.provers.simulation.command import sim
from tests.provers.tables.command import tables

__all__ = ("app",)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(sim)
app.command()(crash)
app.command()(cluster)
app.command()(members)
app.command()(tables)

if __name__ == "__main__":
    app(prog_name="python -m tests.provers")

"""`penstock completion SHELL`: what a shell's start-up file evaluates to complete `penstock`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from api.cli.errors import OperatorError

_VARIABLE = "_PENSTOCK_COMPLETE"
"""Where click looks for what the shell asks."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash (4.4 or newer), in ~/.bashrc:  eval "$(penstock completion bash)"
    zsh, in ~/.zshrc:                   eval "$(penstock completion zsh)"
    fish:                               penstock completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    try:
        script = kind(ctx.find_root().command, {}, "penstock", _VARIABLE).source()
    except RuntimeError as error:  # click's own, of an old bash.
        raise OperatorError(str(error)) from error
    click.echo(script)

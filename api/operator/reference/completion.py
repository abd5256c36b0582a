"""`penstock completion SHELL`: a script that completes commands, options and values in bash, zsh or fish.

The script has all words in it, so that a key press starts no process: click's own asks the program each time,
which takes most of a second. So it is of one release: a shell that evaluates it at its start always has the
installed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

import click

from api.operator.reference.command_tree import Command, Option, tree

_HOW = {
    "bash": 'eval "$(penstock completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(penstock completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "penstock completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and their values in this shell.

    It is of this release: evaluate it where the shell starts, or print it again after an upgrade.
    """
    click.echo(script(tree(ctx.find_root().command), shell), nl=False)


def script(root: Command, shell: str) -> str:
    """Return the script. `shell`: bash (3.2, which macOS has, or newer), zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](root)


def _bash(root: Command) -> str:
    name = root.name
    cases = "".join(
        f"        {quote(' '.join(one.path))}) words={quote(' '.join(_words(one)))} ;;\n"
        for one in root.walk()
    )
    return f"""# bash completion of {name}; made by `{name} completion bash`
_{name}() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command={name} words= i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$command ${{COMP_WORDS[i]}}" in
            {_subcommands(root)}) command="$command ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$command $previous" in
{_values(root, 'COMPREPLY=($(compgen -W {words} -- "$current")); return', "return")}    esac
    case "$command" in
{cases}    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _{name} {name}
"""


def _zsh(root: Command) -> str:
    name = root.name
    cases = "".join(
        f"        {quote(' '.join(one.path))})\n"
        f"            found=({' '.join(quote(_described(*pair)) for pair in _with_help(one))})\n"
        + ("            _files\n" if one.takes_path else "")
        + "            ;;\n"
        for one in root.walk()
    )
    return f"""#compdef {name}
# zsh completion; made by `{name} completion zsh`
_{name}() {{
    local previous=${{words[CURRENT-1]}} command={name} i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        case "$command ${{words[i]}}" in
            {_subcommands(root)}) command="$command ${{words[i]}}" ;;
        esac
    done
    case "$command $previous" in
{_values(root, "compadd -- {list}; return", "_files; return")}    esac
    case "$command" in
{cases}    esac
    _describe {name} found
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _{name} "$@"
else
    compdef _{name} {name}
fi
"""


def _fish(root: Command) -> str:
    lines = [f"# fish completion of {root.name}; made by `{root.name} completion fish`"]
    lines.append(f"complete -c {root.name} -f")
    for one in root.walk():
        begin = f"complete -c {root.name} -n {quote(_fish_condition(one))}"
        lines += [
            f"{begin} -a {quote(below.name)} -d {_fish_text(below.short_help)}" for below in one.commands
        ]
        lines += [f"{begin} -a {quote(word)}" for word in one.words]
        lines += [f"{begin} -F"] if one.takes_path else []
        lines += [f"{begin} {_fish_option(option)}" for option in one.options]
    return "\n".join(lines) + "\n"


def _fish_condition(one: Command) -> str:
    seen = [f"__fish_seen_subcommand_from {word}" for word in one.path[1:]]
    below = " ".join(command.name for command in one.commands)
    return "; and ".join([*seen, *([f"not __fish_seen_subcommand_from {below}"] if below else [])]) or "true"


def _fish_option(option: Option) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    value = ""
    if option.choices:
        value = f" -x -a {quote(' '.join(option.choices))}"
    elif option.takes_value:
        value = " -r -F" if option.is_path else " -x"
    return f"{' '.join(names)}{value} -d {_fish_text(_first_sentence(option.help))}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _subcommands(root: Command) -> str:
    """Return the pattern of all commands below the first one."""
    return "|".join(quote(" ".join(one.path)) for one in root.walk() if one is not root) or "''"


def _values(root: Command, known: str, path: str) -> str:
    """Return the cases of a word behind an option that takes a value. Nothing is offered for one that nobody
    knows."""
    patterns: dict[str, list[str]] = {}
    for one in root.walk():
        for option in (option for option in one.options if option.takes_value):
            action = "return"
            if option.choices:
                texts = quote(" ".join(option.choices))
                action = known.format(words=texts, list=" ".join(map(quote, option.choices)))
            elif option.is_path:
                action = path
            behind = (quote(f"{' '.join(one.path)} {flag}") for flag in option.flags)
            patterns.setdefault(action, []).extend(behind)
    return "".join(f"        {'|'.join(found)}) {action} ;;\n" for action, found in patterns.items())


def _words(one: Command) -> Iterator[str]:
    yield from (word for word, _ in _with_help(one))


def _with_help(one: Command) -> Iterator[tuple[str, str]]:
    yield from ((below.name, below.short_help) for below in one.commands)
    yield from ((word, "") for word in one.words)
    for option in one.options:
        yield from ((flag, _first_sentence(option.help)) for flag in option.flags)


def _described(word: str, help_: str) -> str:
    escaped = word.replace(":", "\\:")
    return f"{escaped}:{help_}" if help_ else escaped


def _first_sentence(text: str) -> str:
    return re.split(r"[.;:] |  \[", text)[0].rstrip(".")

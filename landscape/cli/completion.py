"""Scripts by which a shell completes commands, options and their words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from landscape.cli.declared import Command, declared

_ZSH = ("autoload -U +X compinit bashcompinit", "(( $+functions[compdef] )) || compinit", "bashcompinit")
"""zsh completes as bash does, once its own completion is on."""


def script(shell: str, commands: Mapping[str, type[Command]]) -> str:
    """The script for bash, zsh or fish."""
    if shell == "fish":
        return "\n".join(_fish(commands))
    return "\n".join([*(_ZSH if shell == "zsh" else []), *_bash(commands)])


def _bash(commands: Mapping[str, type[Command]]) -> Iterator[str]:
    yield "_landscape() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words=""'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$word")); return'
    yield "    fi"
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    for name, kind in commands.items():
        for option in declared(kind):
            if option.choices and not option.is_positional:
                yield f'        "{name} {option.flag}") words="{" ".join(option.choices)}";;'
    yield "    esac"
    yield '    if [ -z "$words" ]; then case "${COMP_WORDS[1]} $word" in'
    for name, kind in commands.items():
        flags = [option.flag for option in declared(kind) if not option.is_positional]
        yield f'        "{name} -"*) words="{" ".join([*flags, "--help"])}";;'
        if words := [word for option in declared(kind) if option.is_positional for word in option.choices]:
            yield f'        "{name} "*) words="{" ".join(words)}";;'
    yield "    esac; fi"
    yield '    if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '    else COMPREPLY=($(compgen -f -- "$word")); fi'
    yield "}"
    yield "complete -o filenames -F _landscape landscape"


def _fish(commands: Mapping[str, type[Command]]) -> Iterator[str]:
    for name, kind in commands.items():
        said = shlex.quote(" ".join((kind.__doc__ or "").split()))
        yield f"complete -c landscape -n __fish_use_subcommand -f -a {name} -d {said}"
        for option in declared(kind):
            where = f"complete -c landscape -n '__fish_seen_subcommand_from {name}'"
            words = f" -x -a '{' '.join(option.choices)}'" if option.choices else ""
            if option.is_positional:
                if words:
                    yield where + words.replace(" -x", " -f")
                continue
            takes = words or ("" if option.is_switch else " -r")
            yield f"{where} -l {option.flag[2:]}{takes} -d {shlex.quote(option.help)}"

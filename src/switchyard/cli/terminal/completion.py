"""`yard completion`: print the completion script of a shell, which calls `yard __complete`."""

from __future__ import annotations

from switchyard.cli.terminal.parser import Parser

EXAMPLES = """\
  source <(yard completion bash)                       this shell; put it into ~/.bashrc for all
  yard completion bash > ~/.local/share/bash-completion/completions/yard
  yard completion zsh > ~/.zfunc/_yard                 a folder in your $fpath
  yard completion fish > ~/.config/fish/completions/yard.fish"""

# `-o default`: file names where yard suggests nothing. `cut`: bash shows no descriptions.
BASH = """\
_yard() {
    local IFS=$'\\n'
    COMPREPLY=($(yard __complete "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null | cut -f 1))
}
complete -o default -F _yard yard
"""
ZSH = """\
#compdef yard
_yard() {
    local -a found values shown
    local line
    found=("${(@f)$(yard __complete $((CURRENT - 1)) "${(@)words[2,-1]}" 2>/dev/null)}")
    for line in "${found[@]}"; do
        [[ -z "$line" ]] && continue
        values+=("${line%%$'\\t'*}")
        shown+=("${line//$'\\t'/  }")
    done
    if (( ${#values} )); then
        compadd -l -d shown -a values
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_yard" ]]; then
    _yard "$@"
else
    compdef _yard yard
fi
"""
FISH = """\
function __yard_complete
    set -l before (commandline --tokens-expanded --cut-at-cursor 2>/dev/null; or commandline -opc)
    set -l word (commandline --current-token)
    yard __complete (count $before) $before[2..-1] $word 2>/dev/null
end
complete -c yard -f -a '(__yard_complete)'
complete -c yard -n '__fish_seen_argument -s f -l file -l bulk -l graph -l config -l data' -F
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard completion",
        "Print the completion script of a shell. It asks the server for ids and names, a second at most.",
        examples=EXAMPLES,
    )
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="bash, zsh or fish")
    print(SCRIPTS[parser.parse_args(argv).shell], end="")
    return 0

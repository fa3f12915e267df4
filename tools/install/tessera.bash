# Completion of tessera for bash. What there is to complete, the command says.
_tessera() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} tessera=${COMP_WORDS[0]}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        local commands
        commands=$("$tessera" --help 2>/dev/null | sed -n 's/^  tessera \([a-z]*\) .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$word")
    elif [[ $word = -* ]]; then
        local options
        options=$("$tessera" "$command" --help 2>/dev/null | sed -n '/^Options:/,/^$/s/^  \(-[^ ]*\).*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$options --help" -- "$word")
    else
        local keys=''
        # Of files there are always some; keys come once a letter stands there.
        [ -z "$word" ] || keys=$("$tessera" "$command" --help all 2>/dev/null | sed -n 's/^  \([a-z][a-z0-9_.]*\)   *[^ ].*/\1=/p')
        mapfile -t COMPREPLY < <(compgen -W "$keys" -- "$word")
        [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace 2>/dev/null
    fi
}
complete -o default -o bashdefault -F _tessera tessera

# What stands in for every program that a script starts but bash and text tools. Sourced before the script, and
# again by every shell that it starts. Nothing of the script's own is read here but its words.
#
# A record is a file of $LLMZERO_RECORDS, its fields end in NUL: `old` and the version of a bash that is too old;
# `start` and the words of a command that trains;
# `program`, its label, the text that stands for what it prints, and `read` where the script reads that; `file`
# and a path that was looked for; `source` and a file that is not there. What programs print and which files are
# there is said by LLMZERO_PRINTS (empty, text, number, large, fails, or says: LLMZERO_SAYS) and LLMZERO_FILES
# (empty or there).

if (( BASH_VERSINFO[0] < 5 )); then
    printf 'old\0%s\0' "$BASH_VERSION" > "$LLMZERO_RECORDS/0"
    exit 1
fi

__llmzero_record() {
    local - IFS=$' \t\n' when=${EPOCHREALTIME//[.,]/}
    printf '%s\0' "$@" > "$LLMZERO_RECORDS/$when-$BASHPID-$RANDOM" 2> /dev/null
}

__llmzero_token() {  # a text that stands for what the program of this label prints; into REPLY_
    local label=$1 i code hash=7
    for (( i = 0; i < ${#label}; i++ )); do
        printf -v code %d "'${label:i:1}"
        (( hash = (hash * 31 + code) % 99991 ))
    done
    __llmzero_reply="llmzerop${hash}q"
}

__llmzero_unknown() {  # prints what the world says that an unknown program prints
    local name=${1##*/} label token said made=
    label=$name
    if [[ ${2-} =~ ^[-+A-Za-z0-9_%./:=]{1,40}$ || $1 == command ]]; then label+=" $2"; fi
    __llmzero_token "$label"
    token=$__llmzero_reply
    said=
    case ${LLMZERO_PRINTS-} in
        text) said="$token $token $token $token $token $token" ;;
        number) said=1 ;;
        large) said=4194304 ;;
        says) said=$LLMZERO_SAYS ;;
    esac
    if [[ -p /dev/stdout || -f /dev/stdout ]]; then made=read; fi
    __llmzero_record program "$label" "$token" "$made"
    if [[ -n $said ]]; then printf '%s\n' "$said"; fi
    [[ ${LLMZERO_PRINTS-} != fails ]]
}

__llmzero_text_tool() {  # a text tool, through which what an unknown program printed is never lost
    local - tool=$1 given made status
    set +eEux
    shift
    if (( $# > 1 )) && [[ ${!#} =~ ^(/[A-Za-z0-9_.-]+){2,}$ && ( ! -e ${!#} || ${!#} == /proc/* ) ]]; then
        __llmzero_unknown "$tool" "${!#}"
        return
    fi
    if [[ ${LLMZERO_PRINTS-} != @(text|number|large) || ! -p /dev/stdin ]]; then
        command "$tool" "$@"
        return
    fi
    IFS= read -r -d '' given
    made=$(printf %s "$given" | command "$tool" "$@")
    status=$?
    if [[ $given =~ llmzerop[0-9]+q ]]; then
        if [[ $made != *"${BASH_REMATCH[0]}"* ]]; then made=${BASH_REMATCH[0]}; status=0; fi
    elif [[ $given =~ ^[[:space:]]*(1|4194304)[[:space:]]*$ && $made != *"${BASH_REMATCH[1]}"* ]]; then
        made=${BASH_REMATCH[1]}
        status=0
    fi
    if [[ -n $made ]]; then printf '%s\n' "$made"; fi
    return $status
}
for __llmzero_name in grep egrep fgrep sed awk cut tr head tail wc sort uniq paste rev; do
    eval "$__llmzero_name() { __llmzero_text_tool $__llmzero_name \"\$@\"; }"
done

__llmzero_shell() {  # a shell with this recorder: -c TEXT [NAME ARGUMENT...], or FILE [ARGUMENT...]
    if [[ $1 == -c ]]; then
        LLMZERO_TEXT=$2 "$LLMZERO_BASH" -c \
            '. "$LLMZERO_RECORDER"; __llmzero_text=$LLMZERO_TEXT; unset LLMZERO_TEXT; eval "$__llmzero_text"' \
            "${@:3}"
    else
        "$LLMZERO_BASH" -c \
            '. "$LLMZERO_RECORDER"; . "$0"' "$@"
    fi
}

__llmzero_run() {  # what an unknown command does
    local - IFS=$' \t\n' name=${1##*/} i word base
    set +eEux
    case $name in
        pkill | pgrep | kill | killall | ps | echo | which | type | logger | curl | wget | git)
            __llmzero_unknown "$@"
            return ;;
        env)
            shift
            while [[ ${1-} == -* || ${1-} =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do
                if [[ $1 != -* ]]; then export "$1"; fi
                shift
            done
            if (( $# )); then "$@"; fi
            return ;;
        sleep)
            return 0 ;;
    esac
    for word in "$@"; do
        case $word in
            actor_rollout_ref.* | +actor_rollout_ref.* | ++actor_rollout_ref.* | *.main_ppo | main_ppo.py | */main_ppo.py)
                __llmzero_record start "$@"
                return 0 ;;
        esac
    done
    case $name in
        bash | sh | zsh | dash | ksh | srun | salloc | sbatch | qsub | bsub | ssh | docker | podman | nerdctl | \
        kubectl | singularity | apptainer | enroot | tmux | screen | ray | sudo | su | runuser | nohup | timeout | \
        time | nice | ionice | setsid | stdbuf | numactl | taskset | script | watch | xargs | parallel | pdsh | \
        clush | mpirun | mpiexec | conda | mamba | micromamba | uv | poetry | pixi | torchrun | accelerate | \
        deepspeed | nsys | unbuffer | chronic | gosu | command | exec | caffeinate | -*) ;;
        *)
            if [[ $1 == */* && -f $1 && $1 != *.py ]]; then __llmzero_shell "$@"; else __llmzero_unknown "$@"; fi
            return ;;
    esac
    for (( i = 1; i <= $#; i++ )); do
        word=${!i}
        base=${word##*/}
        case $base in
            bash | sh | zsh | dash | ksh)
                __llmzero_inner "${@:i+1}"
                return ;;
        esac
        if [[ $word == *main_ppo* || $word == *actor_rollout_ref.* ]] && [[ $word == *[[:space:]]* ]]; then
            __llmzero_shell -c "${word#--wrap=}"
            return
        fi
        if (( i > 1 )) && [[ -f $word && $word == *.@(sh|bash|sbatch|slurm|sub|job) || $name$i == sbatch2 && -f $word ]]
        then
            __llmzero_shell "${@:i}"
            return
        fi
    done
    case $name in
        sbatch | ssh | qsub | bsub)
            if [[ ! -t 0 ]]; then
                IFS= read -r -d '' word
                if [[ -n $word ]]; then
                    __llmzero_shell -c "$word"
                    return
                fi
            fi ;;
    esac
    __llmzero_unknown "$@"
}

__llmzero_inner() {  # the words after `bash`
    while [[ ${1-} == [-+]* ]]; do
        case $1 in
            -[a-z]*c | -c)
                shift
                __llmzero_shell -c "$@"
                return ;;
            -o | +o | -O | +O | --rcfile | --init-file) shift ;;
            --version) return 0 ;;
        esac
        shift || break
    done
    if (( $# )); then
        if [[ -f $1 ]]; then __llmzero_shell "$@"; else __llmzero_record source "$1"; fi
    else
        local text
        IFS= read -r -d '' text
        if [[ -n $text ]]; then __llmzero_shell -c "$text"; fi
    fi
}

command_not_found_handle() { __llmzero_run "$@"; }
for __llmzero_name in bash sh zsh env sleep nohup timeout sudo date hostname uname; do
    eval "$__llmzero_name() { __llmzero_run $__llmzero_name \"\$@\"; }"
done
which() { if (( $# )) && __llmzero_is_tool "${@: -1}"; then printf '%s\n' "${@: -1}"; else __llmzero_run which "$@"; fi; }
cd() {
    if [[ -n ${1-} && $1 != - && $1 != -* && ! -d $1 ]]; then command mkdir -p -- "$1" 2> /dev/null; fi
    builtin cd "$@"
}
pushd() {
    if [[ -n ${1-} && $1 != [-+]* && ! -d $1 ]]; then command mkdir -p -- "$1" 2> /dev/null; fi
    builtin pushd "$@"
}
cat() {
    local word
    for word in "$@"; do
        if [[ $word != -* && ( ! -e $word || $word == /proc/* ) ]]; then
            __llmzero_unknown cat "$word"
            return
        fi
    done
    command cat "$@"
}
command() {
    case ${1-} in
        -v | -V)
            if __llmzero_is_tool "${2-}" || builtin command -v "${2-}" > /dev/null; then
                printf '%s\n' "${2-}"
            else
                __llmzero_unknown command "$1 ${2-}"
            fi ;;
        -p) shift; builtin command "$@" ;;
        *) builtin command "$@" ;;
    esac
}
__llmzero_is_tool() { [[ " $LLMZERO_TOOLS bash sh cd python python3 env " == *" ${1##*/} "* ]]; }

__llmzero_path() {  # the path that a word of the script's text stands for, into __llmzero_reply
    local text=$1
    shift
    __llmzero_reply=
    case $text in *'$('* | *'`'* | *'<('*) return 1 ;; esac
    eval "__llmzero_reply=$text" 2> /dev/null
    [[ -n $__llmzero_reply ]]
}

__llmzero_look() {  # notes a file that is looked for and not there, and makes it where the world has it
    if [[ -e $2 ]]; then return; fi
    __llmzero_record file "$2"
    if [[ ${LLMZERO_FILES-} != there ]]; then return; fi
    if [[ $1 == d ]]; then
        builtin command mkdir -p -- "$2" 2> /dev/null
    else
        if [[ $2 == */* ]]; then builtin command mkdir -p -- "${2%/*}" 2> /dev/null; fi
        { printf '8\n' > "$2"; } 2> /dev/null
        chmod +x "$2" 2> /dev/null
    fi
}

__llmzero_word='("([^"\\]|\\.)*"|'\''[^'\'']*'\''|\\.|[^][:space:]"'\''\\;|&<>()])+'
__llmzero_before() {  # before each command: its text, the positional arguments. 1: skip it, 3: it is an `exec`
    local - IFS=$' \t\n' text=$1 rest name LC_ALL=C
    set +eEux
    shift
    if [[ $text == *'>'* && $text != '[['* && $text != '(('* ]]; then
        rest=$text
        while [[ $rest =~ \>+\|?[[:space:]]*($__llmzero_word) ]]; do
            rest=${rest#*"${BASH_REMATCH[0]}"}
            if __llmzero_path "${BASH_REMATCH[1]}" "$@" && [[ $__llmzero_reply == */* ]]; then
                builtin command mkdir -p -- "${__llmzero_reply%/*}" 2> /dev/null
            fi
        done
    fi
    rest=$text
    while [[ $rest =~ (^|[^\<])\<[[:space:]]*($__llmzero_word) ]]; do
        rest=${rest#*"${BASH_REMATCH[0]}"}
        if __llmzero_path "${BASH_REMATCH[2]}" "$@"; then __llmzero_look f "$__llmzero_reply"; fi
    done
    case $text in
        '[ '* | '[[ '* | 'test '*)
            rest=$text
            while [[ $rest =~ [[:space:]]-([abcdefghkLprsSuwx])[[:space:]]+($__llmzero_word) ]]; do
                rest=${rest#*"${BASH_REMATCH[0]}"}
                name=${BASH_REMATCH[1]}
                if __llmzero_path "${BASH_REMATCH[2]}" "$@"; then __llmzero_look "$name" "$__llmzero_reply"; fi
            done
            return 0 ;;
    esac
    while [[ $text =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=($__llmzero_word)?[[:space:]]+(.*)$ ]]; do
        text=${BASH_REMATCH[-1]}
    done
    if [[ ! $text =~ ^($__llmzero_word) ]]; then return 0; fi
    name=${BASH_REMATCH[1]}
    rest=${text#"$name"}
    case $name in
        exec)
            if [[ $rest =~ ^[[:space:]]+[^-[:space:]\<\>\&0-9{] ]]; then
                __llmzero_exec=$rest
                return 3
            fi
            return 0 ;;
        source | .)
            if [[ $rest =~ ^[[:space:]]+($__llmzero_word) ]] && __llmzero_path "${BASH_REMATCH[1]}" "$@" &&
                [[ ! -e $__llmzero_reply ]]; then
                __llmzero_record source "$__llmzero_reply"
                return 1
            fi
            return 0 ;;
        sleep)
            (( ++__llmzero_naps ))
            if (( __llmzero_naps > 6 )); then return 4; fi
            return 1 ;;
    esac
    if [[ $name == *[/\$]* ]] && __llmzero_path "$name" "$@"; then
        name=${__llmzero_reply%%[[:space:]]*}
        if [[ $name =~ ^[A-Za-z0-9_./+@%:~-]*/[A-Za-z0-9_.+@%:~-]+$ ]]; then
            if __llmzero_is_tool "$name"; then
                eval "$name() { ${name##*/} \"\$@\"; }" 2> /dev/null
            else
                eval "$name() { __llmzero_run $name \"\$@\"; }" 2> /dev/null
            fi
        fi
    fi
    return 0
}

__llmzero_naps=0
if [[ -n ${LLMZERO_GO_ON-} ]]; then
    exit() { :; }
    __llmzero_free='builtin set +eu;'
fi
while IFS= read -r __llmzero_name; do
    if __llmzero_path "$__llmzero_name"; then __llmzero_look f "$__llmzero_reply"; fi
done <<< "${LLMZERO_INPUTS-}"
shopt -u sourcepath
shopt -s extdebug
set +E
trap "${__llmzero_free-}"'
if [[ ${FUNCNAME-} == @(__llmzero*|cat|cd|pushd|command|which) ]] || __llmzero_before "$BASH_COMMAND" "$@"; then :; else
    case $? in
        1) ! : ;;
        3) eval "__llmzero_run $__llmzero_exec"; builtin exit ;;
        4) builtin set +e; break 2> /dev/null ;;
    esac
fi' DEBUG

# Reads "+ GROUP" and "- GROUP" until the process that has started the servers has
# ended. Then it kills the groups that are left, every descendant of theirs, and
# every process that has $1, the mark, in its environment.
mark=$1
groups=
while read -r op group; do
	case $op in
	+) groups="$groups $group " ;;
	-) groups=${groups%%" $group "*}${groups#*" $group "} ;;
	esac
done
exec 2>/dev/null

# One group is not enough: the sessions of PostgreSQL leave it, and so do daemons.
orphans=
if [ -d /proc/self ]; then
	for file in $(grep -lzxF -e "$mark" /proc/[0-9]*/environ); do
		pid=${file#/proc/}
		orphans="$orphans ${pid%/environ} "
	done
	found=yes
	while [ "$found" ]; do
		found=
		for file in /proc/[0-9]*/stat; do
			pid=${file#/proc/}
			pid=${pid%/stat}
			case $orphans in *" $pid "*) continue ;; esac
			{ read -r line <"$file"; } || continue # it has ended
			set -- ${line##*) } # state, parent, group, session
			case "$groups$orphans" in
			*" $2 "* | *" $3 "*)
				orphans="$orphans $pid "
				found=yes
				;;
			esac
		done
	done
fi
for group in $groups; do kill -s KILL -- "-$group"; done
for pid in $orphans; do kill -s KILL "$pid"; done

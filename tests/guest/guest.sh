# Runs in the guest: brings up eth0 and the kernel's RDMA device rxe0 on it, then executes commands
# from the virtio port.
#
#   start ID COMMAND   runs COMMAND in the background, with its output in /mnt/out.ID and
#                      /mnt/out.ID.err
#   stop ID            kills that command and all that it started
#   end of file        powers off, because the host has ended or needs the guest no longer
#
# Answers on the same port: "ready" at the start, "done ID STATUS" for each command that has ended.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
set -m # each command gets a process group of its own, so that stop reaches all of it
exec 3<>"$(grep -l '^agent$' /sys/class/virtio-ports/*/name | sed 's,/sys/class/virtio-ports/\(.*\)/name,/dev/\1,')"

option() { grep -o "$1=[^ ]*" /proc/cmdline | cut -d= -f2; }
mtu=$(option link_mtu)
ip link set lo up
ip link set eth0 mtu "$mtu" up
ip addr add "$(option link_ipv4)/24" dev eth0
ip addr add "$(option link_ipv6)/64" dev eth0 nodad
ip link set ifb0 mtu "$mtu" up
rdma link add rxe0 type rxe netdev eth0
ulimit -l unlimited

declare -A group
echo ready >&3
while read -r verb id command <&3; do
    case $verb in
        start)
            (bash -c "$command" >"/mnt/out.$id" 2>"/mnt/out.$id.err" </dev/null 3>&-; echo "done $id $?" >&3) &
            group[$id]=$! ;;
        stop) kill -KILL -- "-${group[$id]}" ;;
    esac
done
sync
echo o >/proc/sysrq-trigger

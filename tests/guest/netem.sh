# Runs in the guest: `netem.sh RULES...` applies these rules of netem to RoCEv2 packets in both
# directions; `netem.sh` removes the rules. Other traffic, such as the TCP connection of the test
# programs, does not pass through netem.
tc qdisc del dev eth0 root 2>/dev/null
tc qdisc del dev eth0 ingress 2>/dev/null
tc qdisc del dev ifb0 root 2>/dev/null
[ $# -gt 0 ] || exit 0
set -e

# roce PARENT ACTION...: adds a filter on UDP port 4791 for each IP version.
roce() {
    tc filter add dev eth0 parent "$1" protocol ip prio 1 \
        u32 match ip protocol 17 0xff match ip dport 4791 0xffff "${@:2}"
    tc filter add dev eth0 parent "$1" protocol ipv6 prio 2 \
        u32 match ip6 protocol 17 0xff match ip6 dport 4791 0xffff "${@:2}"
}

# Outgoing: a fourth band, which only the filters fill.
tc qdisc add dev eth0 root handle 1: prio bands 4
tc qdisc add dev eth0 parent 1:4 handle 40: netem limit 20000 "$@"
roce 1: flowid 1:4
# Incoming: by way of ifb0, because netem only treats packets that an interface sends.
tc qdisc add dev ifb0 root netem limit 20000 "$@"
tc qdisc add dev eth0 handle ffff: ingress
roce ffff: action mirred egress redirect dev ifb0

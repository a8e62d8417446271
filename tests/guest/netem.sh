# In the guest: `netem.sh RULES...` lets netem treat the RoCEv2 packets in both directions by RULES;
# without rules it takes everything back. Other traffic (the TCP connection of the test programs)
# never meets netem.
tc qdisc del dev eth0 root 2>/dev/null
tc qdisc del dev eth0 ingress 2>/dev/null
tc qdisc del dev ifb0 root 2>/dev/null
[ $# -gt 0 ] || exit 0
set -e

# roce PARENT WHAT...: a filter for each IP version on UDP port 4791.
roce() {
    tc filter add dev eth0 parent "$1" protocol ip prio 1 \
        u32 match ip protocol 17 0xff match ip dport 4791 0xffff "${@:2}"
    tc filter add dev eth0 parent "$1" protocol ipv6 prio 2 \
        u32 match ip6 protocol 17 0xff match ip6 dport 4791 0xffff "${@:2}"
}

# Going out: a fourth band that only the filters fill.
tc qdisc add dev eth0 root handle 1: prio bands 4
tc qdisc add dev eth0 parent 1:4 handle 40: netem limit 20000 "$@"
roce 1: flowid 1:4
# Coming in: by way of ifb0, because netem only works on what is sent.
tc qdisc add dev ifb0 root netem limit 20000 "$@"
tc qdisc add dev eth0 handle ffff: ingress
roce ffff: action mirred egress redirect dev ifb0

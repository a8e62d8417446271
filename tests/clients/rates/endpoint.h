/*
 * Shared by the programs of this folder: errors, the socket over which client and server exchange
 * the addresses of their queue pairs, and the transitions of a queue pair to RTS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Address of a queue pair, and the memory that its peer may write. */
struct address {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t psn;
	uint64_t memory;
	uint32_t rkey;
};

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

static inline void check(int bad, const char *what)
{
	if (bad)
		die(what);
}

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context;

	check(!devices || !devices[0], "no device");
	context = ibv_open_device(devices[0]);
	check(!context, "ibv_open_device");
	ibv_free_device_list(devices);
	return context;
}

/* Connects to the server, or accepts the client if server is NULL. Returns the socket. */
static inline int connect_peer(const char *server, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, sock = socket(AF_INET, SOCK_STREAM, 0), peer;

	check(sock < 0, "socket");
	if (server) {
		check(inet_pton(AF_INET, server, &at.sin_addr) != 1, server);
		check(connect(sock, (struct sockaddr *)&at, sizeof(at)), "connect");
		return sock;
	}
	check(setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), "SO_REUSEADDR");
	check(bind(sock, (struct sockaddr *)&at, sizeof(at)), "bind");
	check(listen(sock, 1), "listen");
	peer = accept(sock, NULL, NULL);
	check(peer < 0, "accept");
	close(sock);
	return peer;
}

static inline void transfer(int sock, void *data, size_t bytes, int sends)
{
	char *at = data;

	while (bytes) {
		ssize_t done = sends ? write(sock, at, bytes) : read(sock, at, bytes);

		check(done <= 0, sends ? "write" : "read");
		at += done;
		bytes -= done;
	}
}

/* Sends this number of bytes from own, and receives the same number into peer. */
static inline void exchange(int sock, void *own, void *peer, size_t bytes)
{
	transfer(sock, own, bytes, 1);
	transfer(sock, peer, bytes, 0);
}

/* Returns once the peer has called this too. */
static inline void wait_for_peer(int sock)
{
	char ready = 0;

	exchange(sock, &ready, &ready, 1);
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Prints a line as perftest does: bytes, messages, 0, 0, million messages per second. */
static inline void print_rate(int bytes, long messages, double begun)
{
	printf("%d %ld 0 0 %.6f\n", bytes, messages, messages / (seconds() - begun) / 1e6);
}

static inline void to_init(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };

	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "ibv_modify_qp to INIT");
}

static inline void to_rts(struct ibv_qp *qp, enum ibv_mtu mtu, const struct address *own,
			  const struct address *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .min_rnr_timer = 12,
				    .max_dest_rd_atomic = 1 };

	attr.dest_qp_num = peer->qpn;
	attr.rq_psn = peer->psn;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = peer->gid;
	attr.ah_attr.grh.hop_limit = 64;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "ibv_modify_qp to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	attr.sq_psn = own->psn;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "ibv_modify_qp to RTS");
}

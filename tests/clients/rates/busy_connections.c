/*
 * A client and a server with many RC connections, of which a few are busy:
 * busy_connections -p PORT -c CONNECTIONS -b BUSY -n MESSAGES [SERVER]
 *
 * The server sleeps until messages raise events; each of its connections has a completion queue of
 * its own, all on one channel. The client polls one completion queue, keeps one SEND outstanding on
 * each busy connection, and sends the next one after the answer. It prints a line as perftest does:
 * bytes, messages, 0, 0, million messages per second in each direction.
 */
#define _GNU_SOURCE
#include "endpoint.h"
#include <getopt.h>

#define BYTES 64
/* Capacity of each queue of a connection, and number of receives posted to it. */
#define DEPTH 4

struct connection {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
};

static int port = 18515, connections = 1000, busy = 10;
static long messages = 10000;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *send_cq;
static struct ibv_mr *mr;
static char *memory;
static struct connection *table;

static void post_receive(int index)
{
	struct ibv_sge sge = { (uintptr_t)memory + (size_t)index * BYTES, BYTES, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(ibv_post_recv(table[index].qp, &wr, &bad), "ibv_post_recv");
}

/* Posts a SEND, and polls completions of earlier ones. */
static void post_send(int index)
{
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc[DEPTH];
	int count, at;

	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	check(ibv_post_send(table[index].qp, &wr, &bad), "ibv_post_send");
	count = ibv_poll_cq(send_cq, DEPTH, wc);
	check(count < 0, "ibv_poll_cq");
	for (at = 0; at < count; at++)
		check(wc[at].status, ibv_wc_status_str(wc[at].status));
}

static void create_connection(int index, int events)
{
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .qp_type = IBV_QPT_RC };

	table[index].cq = events || !index ? ibv_create_cq(context, events ? DEPTH : connections * DEPTH, NULL,
							 events ? channel : NULL, 0)
					 : table[0].cq;
	check(!table[index].cq, "ibv_create_cq");
	init.recv_cq = table[index].cq;
	init.cap = (struct ibv_qp_cap){ DEPTH, DEPTH, 1, 1, BYTES };
	table[index].qp = ibv_create_qp(pd, &init);
	check(!table[index].qp, "ibv_create_qp");
	to_init(table[index].qp, 0);
	for (int slot = 0; slot < DEPTH; slot++)
		post_receive(index);
	if (events)
		check(ibv_req_notify_cq(table[index].cq, 0), "ibv_req_notify_cq");
}

/* Polls a queue and answers its messages. Returns their number. */
static int answer(struct ibv_cq *cq)
{
	struct ibv_wc wc[DEPTH];
	int count = ibv_poll_cq(cq, DEPTH, wc);

	check(count < 0, "ibv_poll_cq");
	for (int at = 0; at < count; at++) {
		check(wc[at].status, ibv_wc_status_str(wc[at].status));
		post_receive(wc[at].wr_id);
		post_send(wc[at].wr_id);
	}
	return count;
}

static void run_server(void)
{
	long done = 0;

	while (done < messages) {
		struct ibv_cq *cq;
		void *cq_context;

		check(ibv_get_cq_event(channel, &cq, &cq_context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		check(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		done += answer(cq);
	}
}

static void run_client(void)
{
	double begun = seconds();
	long sent = 0, done = 0;
	struct ibv_wc wc[DEPTH];

	/* Spreads the busy connections over all connections. */
	for (; sent < busy && sent < messages; sent++)
		post_send(sent * (connections / busy));
	while (done < messages) {
		int count = ibv_poll_cq(table[0].cq, DEPTH, wc);

		check(count < 0, "ibv_poll_cq");
		for (int at = 0; at < count; at++, done++) {
			check(wc[at].status, ibv_wc_status_str(wc[at].status));
			post_receive(wc[at].wr_id);
			if (sent < messages) {
				post_send(wc[at].wr_id);
				sent++;
			}
		}
	}
	print_rate(BYTES, messages, begun);
}

int main(int argc, char **argv)
{
	struct address *own, *peers;
	const char *server;
	int option, sock;

	while ((option = getopt(argc, argv, "p:c:b:n:")) != -1) {
		switch (option) {
		case 'p': port = atoi(optarg); break;
		case 'c': connections = atoi(optarg); break;
		case 'b': busy = atoi(optarg); break;
		case 'n': messages = atol(optarg); break;
		default: return 2;
		}
	}
	server = argv[optind];
	context = open_first();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	send_cq = ibv_create_cq(context, connections * DEPTH, NULL, NULL, 0);
	memory = calloc(connections, BYTES);
	table = calloc(connections, sizeof(*table));
	own = calloc(connections, sizeof(*own));
	peers = calloc(connections, sizeof(*peers));
	check(!pd || !channel || !send_cq || !memory || !table || !own || !peers, "set-up");
	mr = ibv_reg_mr(pd, memory, (size_t)connections * BYTES, IBV_ACCESS_LOCAL_WRITE);
	check(!mr, "ibv_reg_mr");
	for (int index = 0; index < connections; index++) {
		create_connection(index, !server);
		check(ibv_query_gid(context, 1, 0, &own[index].gid), "ibv_query_gid");
		own[index].qpn = table[index].qp->qp_num;
		own[index].psn = index;
	}
	sock = connect_peer(server, port);
	exchange(sock, own, peers, connections * sizeof(*own));
	for (int index = 0; index < connections; index++)
		to_rts(table[index].qp, IBV_MTU_1024, &own[index], &peers[index]);
	wait_for_peer(sock);
	if (server)
		run_client();
	else
		run_server();
	/* The server must not exit before the client has received the last answer. */
	wait_for_peer(sock);
	return 0;
}

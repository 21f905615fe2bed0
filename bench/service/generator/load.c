/* A closed-loop load generator: so many connections, each with one request under way, over TCP or a Unix socket.
 *
 * It speaks HTTP/1.1 and as much of the protocols of redis and memcached as reads and writes need, so that all that is
 * compared is driven by the same program. It shares the machine with what it measures, so it does little: requests are
 * a head that was made before with eight digits of key in it, bodies are sent from one pool of random bytes, and of an
 * answer the head is parsed and the rest dropped in the kernel (MSG_TRUNC), unless --copy or --verify want it.
 *
 * A request is counted when its whole answer has arrived in the measured window. SIGUSR1 begins the window anew,
 * SIGTERM ends it. The result is one JSON object on standard output. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 1024
#define INPUT_BYTES 8192
#define HEAD_BYTES 2048
#define SCRATCH_BYTES (1 << 20)
#define POOL_BYTES (64u << 20)      /* more than the caches hold: bodies are cold when they are sent */
#define POOL_STEP 4096u
#define BODY_MAX_BYTES (64u << 20)
#define STALL_SECONDS 15
#define BROKEN_MAX 1000
#define SUB_BITS 6                  /* 64 steps for each doubling of a latency: within 1.6 % */
#define BUCKETS (64 << SUB_BITS)

enum protocol { HTTP, REDIS, MEMCACHED };
enum state { HEAD, BODY, CHUNK_LINE, CHUNK_BODY, CHUNK_END, TRAILER };
enum kind { READ, WRITE, KINDS };
enum outcome { OK, MISS, FAILED };

struct template { const char *before, *after; int weight; };

struct histogram { uint64_t counts[BUCKETS], count, sum, longest; };

struct connection {
    int fd;
    enum state state;
    enum kind kind;
    enum outcome outcome;
    bool waiting;                   /* a request is under way */
    bool closing;                   /* the server said that it ends the connection after this answer */
    uint64_t began;
    uint64_t remaining, place;      /* of the body: bytes still to come, bytes that came */
    const char *expected;
    size_t expected_bytes;
    struct iovec out[3];
    int out_next;
    char head[HEAD_BYTES];
    char input[INPUT_BYTES];
    size_t input_begin, input_end;
};

static struct options {
    enum protocol protocol;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    int connections, values;
    double seconds, warmup;
    uint64_t requests, keys, first_key, seed;
    size_t bytes;
    bool sequence, copy, verify;
    struct template templates[KINDS];
    const char *tail, *canned;
} options = {.connections = 1, .values = 1, .seconds = 1, .keys = 1, .seed = 1, .tail = ""};

static struct { const char *data; size_t size; const char **begins; size_t *sizes; uint64_t count; } canned;
static char *pool, *scratch;
static struct connection *connections;
static struct histogram histograms[KINDS];
static uint64_t sent, finished, misses, failed, wrong, broken, bytes_in, bytes_out, total_finished;
static uint64_t next_key, window_began, window_ended, last_progress;
static char first_failure[160];
static int epoll_fd;
static volatile sig_atomic_t window_wanted, end_wanted;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t draw(void) {        /* xorshift64*: good enough to choose keys */
    options.seed ^= options.seed >> 12;
    options.seed ^= options.seed << 25;
    options.seed ^= options.seed >> 27;
    return options.seed * 0x2545F4914F6CDD1Du;
}

/* ---- latencies ---- */

static int bucket_of(uint64_t value) {
    if (value < (1u << SUB_BITS)) return (int)value;
    int shift = 63 - __builtin_clzll(value) - SUB_BITS;
    return ((shift + 1) << SUB_BITS) + (int)((value >> shift) & ((1u << SUB_BITS) - 1));
}

static uint64_t value_of(int bucket) {
    if (bucket < (1 << SUB_BITS)) return (uint64_t)bucket;
    int shift = (bucket >> SUB_BITS) - 1;
    return ((1u << SUB_BITS) + (uint64_t)(bucket & ((1 << SUB_BITS) - 1))) << shift;
}

static void record(struct histogram *histogram, uint64_t value) {
    histogram->counts[bucket_of(value)]++;
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->longest) histogram->longest = value;
}

static double percentile(const struct histogram *histogram, double share) {
    uint64_t wanted = (uint64_t)(share * (double)histogram->count), seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        if ((seen += histogram->counts[bucket]) > wanted) return (double)value_of(bucket) / 1e3;
    return (double)histogram->longest / 1e3;
}

/* ---- requests ---- */

/* The body of a key is always the same, so that whoever reads it can tell whether it is right. */
static const char *body_of(uint64_t key) {
    return pool + (key * 0x9E3779B97F4A7C15u >> 32) % (POOL_BYTES / POOL_STEP) * POOL_STEP;
}

static uint64_t choose_key(void) {
    uint64_t key = options.sequence ? next_key++ % options.keys : draw() % options.keys;
    return options.first_key + key;
}

static void use_canned(struct connection *c) {
    uint64_t number = options.sequence ? next_key++ % canned.count : draw() % canned.count;
    c->kind = options.templates[READ].weight ? READ : WRITE;
    c->out[0] = (struct iovec){(char *)canned.begins[number], canned.sizes[number]};
    c->out[1].iov_len = c->out[2].iov_len = 0;
}

static void use_template(struct connection *c) {
    int weights = options.templates[READ].weight + options.templates[WRITE].weight;
    c->kind = (int)(draw() % (uint64_t)weights) < options.templates[READ].weight ? READ : WRITE;
    struct template *template = &options.templates[c->kind];
    uint64_t key = choose_key();
    int size = snprintf(c->head, HEAD_BYTES, "%s%08llx%s", template->before, (unsigned long long)key, template->after);
    if (size >= HEAD_BYTES) die("the head of a request is too long");
    c->out[0] = (struct iovec){c->head, (size_t)size};
    c->expected = body_of(key);
    c->expected_bytes = c->kind == READ ? options.bytes : 0;
    c->out[1] = (struct iovec){(char *)c->expected, c->kind == WRITE ? options.bytes : 0};
    c->out[2] = (struct iovec){(char *)options.tail, c->kind == WRITE ? strlen(options.tail) : 0};
}

static bool send_rest(struct connection *c) {
    while (c->out_next < 3) {
        struct msghdr message = {.msg_iov = c->out + c->out_next, .msg_iovlen = (size_t)(3 - c->out_next)};
        ssize_t count = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        bytes_out += (uint64_t)count;
        while (c->out_next < 3 && (size_t)count >= c->out[c->out_next].iov_len)
            count -= (ssize_t)c->out[c->out_next++].iov_len;
        if (c->out_next < 3) {
            c->out[c->out_next].iov_base = (char *)c->out[c->out_next].iov_base + count;
            c->out[c->out_next].iov_len -= (size_t)count;
        }
    }
    return true;
}

static bool begin_request(struct connection *c) {
    if (options.requests && sent >= options.requests) { c->waiting = false; return true; }
    sent++;
    if (options.canned) use_canned(c); else use_template(c);
    c->out_next = 0;
    c->state = HEAD;
    c->outcome = OK;
    c->place = 0;
    c->waiting = true;
    c->began = now();
    return send_rest(c);
}

/* ---- connections ---- */

static void open_connection(struct connection *c) {
    c->fd = socket(options.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&options.address, options.address_bytes) < 0)
        die("connect: %s", strerror(errno));
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    int one = 1;
    if (options.address.ss_family == AF_INET) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->input_begin = c->input_end = 0;
    c->closing = false;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl: %s", strerror(errno));
}

static void renew(struct connection *c) {
    do {
        close(c->fd);
        open_connection(c);
    } while (!begin_request(c) && ++broken <= BROKEN_MAX);
}

static void note_failure(const char *line, size_t size) {
    if (first_failure[0]) return;
    size_t kept = 0;
    for (size_t at = 0; at < size && kept + 1 < sizeof first_failure; at++)
        first_failure[kept++] = line[at] < ' ' || line[at] == '"' || line[at] == '\\' || line[at] > '~' ? ' ' : line[at];
}

/* An answer is there whole. True: go on reading; false: the connection was opened anew. */
static bool finish(struct connection *c) {
    uint64_t time = now();
    last_progress = time;
    total_finished++;
    finished++;
    if (c->outcome == OK) record(&histograms[c->kind], time - c->began);
    else if (c->outcome == MISS) misses++;
    else failed++;
    if (c->closing || c->out_next < 3) { renew(c); return false; }
    if (!begin_request(c)) { broken++; renew(c); return false; }
    return true;
}

/* ---- answers ---- */

static void http_head(struct connection *c, char *head, size_t size) {
    int status = size > 12 ? atoi(head + 9) : 0;
    c->outcome = status >= 200 && status < 300 ? OK : status == 404 ? MISS : FAILED;
    c->remaining = 0;
    c->state = BODY;
    if (c->outcome == FAILED) note_failure(head, size);
    for (char *line = strchr(head, '\n'); line && line[1] != '\r'; line = strchr(line + 1, '\n')) {
        if (!strncasecmp(line + 1, "content-length:", 15)) c->remaining = strtoull(line + 16, NULL, 10);
        else if (!strncasecmp(line + 1, "transfer-encoding: chunked", 26)) c->state = CHUNK_LINE;
        else if (!strncasecmp(line + 1, "connection: close", 17)) c->closing = true;
    }
    if (status == 204 || status == 304) c->remaining = 0, c->state = BODY;
}

static void redis_head(struct connection *c, char *line, size_t size) {
    c->state = BODY;
    c->remaining = 0;
    if (line[0] == '-') c->outcome = FAILED, note_failure(line, size);
    else if (line[0] == '$' && line[1] == '-') c->outcome = MISS;
    else if (line[0] == '$') c->remaining = strtoull(line + 1, NULL, 10) + 2;
}

static void memcached_head(struct connection *c, char *line, size_t size) {
    c->state = BODY;
    c->remaining = 0;
    if (!strncmp(line, "VALUE ", 6)) c->remaining = strtoull(strrchr(line, ' ') + 1, NULL, 10) + strlen("\r\nEND\r\n");
    else if (!strncmp(line, "END", 3)) c->outcome = MISS;
    else if (strncmp(line, "STORED", 6)) c->outcome = FAILED, note_failure(line, size);
}

static void check(struct connection *c, const char *data, size_t count) {
    if (!options.verify || c->place >= c->expected_bytes || c->kind != READ || c->outcome != OK) return;
    size_t compared = c->expected_bytes - c->place < count ? c->expected_bytes - c->place : count;
    if (memcmp(data, c->expected + c->place, compared)) wrong++;
}

static void take_body(struct connection *c, const char *data, size_t count) {
    if (data) check(c, data, count);
    c->place += count;
    c->remaining -= count;
}

/* The next line or head of what arrived, ended by a zero; NULL: not there yet. */
static char *next_text(struct connection *c, const char *end, size_t *size) {
    char *begin = c->input + c->input_begin;
    char *found = memmem(begin, c->input_end - c->input_begin, end, strlen(end));
    if (!found) return NULL;
    *size = (size_t)(found - begin) + strlen(end);
    c->input_begin += *size;
    found[strlen(end) - 1] = 0;
    return begin;
}

/* Bytes were received, or 0: wait; -1: the connection has ended. */
static ssize_t receive(struct connection *c) {
    ssize_t count;
    bool body = (c->state == BODY || c->state == CHUNK_BODY) && c->remaining && c->input_begin == c->input_end;
    if (body) {
        bool drop = !options.copy && !options.verify && options.address.ss_family == AF_INET;
        size_t most = drop || c->remaining < SCRATCH_BYTES ? c->remaining : SCRATCH_BYTES;
        count = recv(c->fd, scratch, most, drop ? MSG_TRUNC : 0);
        if (count > 0) take_body(c, drop ? NULL : scratch, (size_t)count);
    } else {
        if (c->input_begin) memmove(c->input, c->input + c->input_begin, c->input_end - c->input_begin);
        c->input_end -= c->input_begin;
        c->input_begin = 0;
        if (c->input_end == INPUT_BYTES) die("the head of an answer is too long");
        count = recv(c->fd, c->input + c->input_end, INPUT_BYTES - c->input_end, 0);
        if (count > 0) c->input_end += (size_t)count;
    }
    if (count > 0) bytes_in += (uint64_t)count;
    if (count < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    return count ? count : -1;
}

/* Takes what was received as far as it goes. 1: an answer is complete; 0: more is needed. */
static int parse(struct connection *c) {
    size_t size;
    char *text;
    for (;;) {
        switch (c->state) {
        case HEAD:
            if (!(text = next_text(c, options.protocol == HTTP ? "\r\n\r\n" : "\r\n", &size))) return 0;
            if (options.protocol == HTTP) http_head(c, text, size);
            else if (options.protocol == REDIS) redis_head(c, text, size);
            else memcached_head(c, text, size);
            break;
        case BODY:
        case CHUNK_BODY: {
            size_t there = c->input_end - c->input_begin;
            if (there > c->remaining) there = c->remaining;
            take_body(c, c->input + c->input_begin, there);
            c->input_begin += there;
            if (c->remaining) return 0;
            if (c->state == BODY) return 1;
            c->state = CHUNK_END;
            break;
        }
        case CHUNK_LINE:
            if (!(text = next_text(c, "\r\n", &size))) return 0;
            c->remaining = strtoull(text, NULL, 16);
            c->state = c->remaining ? CHUNK_BODY : TRAILER;
            break;
        case CHUNK_END:
            if (!next_text(c, "\r\n", &size)) return 0;
            c->state = CHUNK_LINE;
            break;
        case TRAILER:
            if (!next_text(c, "\r\n", &size)) return 0;
            if (size == 2) return 1;
            break;
        }
    }
}

static void serve(struct connection *c, uint32_t events) {
    if (c->waiting && (events & EPOLLOUT) && !send_rest(c)) { broken++; renew(c); return; }
    if (!(events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) return;
    for (;;) {
        ssize_t count = receive(c);
        if (count < 0) {
            if (!c->waiting) { close(c->fd); return; }
            broken++;
            renew(c);
            return;
        }
        if (!count) return;
        while (c->waiting && parse(c)) {
            if (c->place < c->expected_bytes && c->outcome == OK && c->kind == READ && !options.canned) wrong++;
            if (!finish(c)) return;
            if (c->input_begin == c->input_end) return;  /* the answer to come makes an event of its own */
        }
    }
}

/* ---- the run ---- */

static void begin_window(void) {
    memset(histograms, 0, sizeof histograms);
    finished = misses = failed = wrong = bytes_in = bytes_out = 0;
    window_began = now();
}

static void on_signal(int number) {
    if (number == SIGUSR1) window_wanted = 1; else end_wanted = 1;
}

static bool all_done(void) {
    if (!options.requests || sent < options.requests) return false;
    for (int number = 0; number < options.connections; number++)
        if (connections[number].waiting) return false;
    return true;
}

static void run(void) {
    uint64_t began = now();
    uint64_t window = began + (uint64_t)(options.warmup * 1e9), end = window + (uint64_t)(options.seconds * 1e9);
    bool warm = options.warmup > 0;
    struct epoll_event events[MAX_CONNECTIONS];
    last_progress = began;
    for (int number = 0; number < options.connections; number++) {
        open_connection(&connections[number]);
        if (!begin_request(&connections[number])) broken++, renew(&connections[number]);
    }
    begin_window();
    while (!end_wanted && !all_done() && broken <= BROKEN_MAX) {
        int count = epoll_wait(epoll_fd, events, MAX_CONNECTIONS, 100);
        for (int number = 0; number < count; number++) serve(events[number].data.ptr, events[number].events);
        uint64_t time = now();
        if (window_wanted || (warm && time >= window)) {
            warm = false;
            window_wanted = 0;
            begin_window();
        }
        if (!options.requests && time >= end) break;
        if (time - last_progress > STALL_SECONDS * 1000000000ull) die("no answer for %d s", STALL_SECONDS);
    }
    window_ended = now();
}

static void report_kind(const char *name, const struct histogram *h) {
    printf(", \"%s\": {\"count\": %llu, \"mean_us\": %.2f, \"p50_us\": %.2f, \"p90_us\": %.2f, \"p99_us\": %.2f, "
           "\"p999_us\": %.2f, \"max_us\": %.2f}",
           name, (unsigned long long)h->count, h->count ? (double)h->sum / (double)h->count / 1e3 : 0.0,
           percentile(h, 0.5), percentile(h, 0.9), percentile(h, 0.99), percentile(h, 0.999), (double)h->longest / 1e3);
}

static void report(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
                 + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\": %.6f, \"requests\": %llu, \"ok\": %llu, \"misses\": %llu, \"failed\": %llu, \"wrong\": %llu, "
           "\"broken\": %llu, \"values\": %llu, \"bytes_in\": %llu, \"bytes_out\": %llu, \"total_requests\": %llu, "
           "\"cpu_seconds\": %.4f, \"first_failure\": \"%s\"",
           (double)(window_ended - window_began) / 1e9, (unsigned long long)finished,
           (unsigned long long)(histograms[READ].count + histograms[WRITE].count), (unsigned long long)misses,
           (unsigned long long)failed, (unsigned long long)wrong, (unsigned long long)broken,
           (unsigned long long)((histograms[READ].count + histograms[WRITE].count) * (uint64_t)options.values),
           (unsigned long long)bytes_in, (unsigned long long)bytes_out, (unsigned long long)total_finished, cpu,
           first_failure);
    report_kind("reads", &histograms[READ]);
    report_kind("writes", &histograms[WRITE]);
    printf("}\n");
}

/* ---- options ---- */

static void set_address(const char *text) {
    if (!strncmp(text, "unix:", 5)) {
        struct sockaddr_un *address = (struct sockaddr_un *)&options.address;
        address->sun_family = AF_UNIX;
        if (strlen(text + 5) >= sizeof address->sun_path) die("the path of the socket is too long");
        strcpy(address->sun_path, text + 5);
        options.address_bytes = sizeof *address;
        return;
    }
    char host[64];
    int port;
    struct sockaddr_in *address = (struct sockaddr_in *)&options.address;
    if (sscanf(text, "%63[^:]:%d", host, &port) != 2 || inet_pton(AF_INET, host, &address->sin_addr) != 1)
        die("the address is ADDRESS:PORT or unix:PATH, not %s", text);
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)port);
    options.address_bytes = sizeof *address;
}

/* WEIGHT:HEAD with {key} in the head. */
static void set_template(enum kind kind, char *text) {
    char *head, *key;
    options.templates[kind].weight = (int)strtol(text, &head, 10);
    if (*head != ':') die("a template is WEIGHT:HEAD");
    options.templates[kind].before = ++head;
    options.templates[kind].after = "";
    if ((key = strstr(head, "{key}"))) *key = 0, options.templates[kind].after = key + 5;
}

/* A file of complete requests, each behind its length as eight bytes, little-endian. */
static void load_canned(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) < 0 || facts.st_size < 8) die("%s: %s", path, strerror(errno));
    canned.size = (size_t)facts.st_size;
    canned.data = mmap(NULL, canned.size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (canned.data == MAP_FAILED) die("mmap: %s", strerror(errno));
    size_t room = 0;
    for (size_t at = 0; at + 8 <= canned.size;) {
        uint64_t size;
        memcpy(&size, canned.data + at, 8);
        if (size > canned.size - at - 8) die("%s ends within a request", path);
        if (canned.count == room) {
            room = room ? 2 * room : 1024;
            canned.begins = realloc(canned.begins, room * sizeof *canned.begins);
            canned.sizes = realloc(canned.sizes, room * sizeof *canned.sizes);
        }
        canned.begins[canned.count] = canned.data + at + 8;
        canned.sizes[canned.count++] = size;
        at += 8 + size;
    }
    close(fd);
}

static void fill_pool(void) {
    size_t size = POOL_BYTES + options.bytes;
    pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED) die("mmap: %s", strerror(errno));
    uint64_t kept = options.seed;
    options.seed = 0x9E3779B97F4A7C15u;  /* always the same bytes */
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word = draw();
        memcpy(pool + at, &word, 8);
    }
    options.seed = kept;
}

static void parse_options(int count, char **words) {
    static const struct option names[] = {
        {"protocol", 1, 0, 'p'}, {"connect", 1, 0, 'a'}, {"connections", 1, 0, 'c'}, {"seconds", 1, 0, 's'},
        {"warmup", 1, 0, 'u'}, {"requests", 1, 0, 'n'}, {"keys", 1, 0, 'k'}, {"first-key", 1, 0, 'f'},
        {"bytes", 1, 0, 'b'}, {"read", 1, 0, 'r'}, {"write", 1, 0, 'w'}, {"tail", 1, 0, 't'}, {"canned", 1, 0, 'q'},
        {"values", 1, 0, 'v'}, {"seed", 1, 0, 'x'}, {"sequence", 0, 0, 'o'}, {"copy", 0, 0, 'C'},
        {"verify", 0, 0, 'V'}, {0, 0, 0, 0}};
    for (int name; (name = getopt_long(count, words, "", names, NULL)) != -1;) {
        switch (name) {
        case 'p': options.protocol = *optarg == 'r' ? REDIS : *optarg == 'm' ? MEMCACHED : HTTP; break;
        case 'a': set_address(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'u': options.warmup = atof(optarg); break;
        case 'n': options.requests = strtoull(optarg, NULL, 10); break;
        case 'k': options.keys = strtoull(optarg, NULL, 10); break;
        case 'f': options.first_key = strtoull(optarg, NULL, 10); break;
        case 'b': options.bytes = strtoull(optarg, NULL, 10); break;
        case 'r': set_template(READ, optarg); break;
        case 'w': set_template(WRITE, optarg); break;
        case 't': options.tail = optarg; break;
        case 'q': options.canned = optarg; break;
        case 'v': options.values = atoi(optarg); break;
        case 'x': options.seed = strtoull(optarg, NULL, 10) | 1; break;
        case 'o': options.sequence = true; break;
        case 'C': options.copy = true; break;
        case 'V': options.verify = true; break;
        default: die("see the names in parse_options");
        }
    }
    if (!options.address_bytes) die("--connect is missing");
    if (options.connections < 1 || options.connections > MAX_CONNECTIONS) die("1 to %d connections", MAX_CONNECTIONS);
    if (options.bytes > BODY_MAX_BYTES || !options.keys) die("too large a body, or no keys");
    if (options.templates[READ].weight + options.templates[WRITE].weight < 1) die("--read or --write is missing");
}

int main(int count, char **words) {
    parse_options(count, words);
    fill_pool();
    if (options.canned) load_canned(options.canned);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)options.connections, sizeof *connections);
    scratch = aligned_alloc(4096, SCRATCH_BYTES);
    if (epoll_fd < 0 || !connections || !scratch) die("no memory");
    run();
    report();
    return 0;
}

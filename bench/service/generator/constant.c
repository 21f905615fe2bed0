/* The least that a server can do: every request is answered with the same bytes from memory. What the load generator
 * reaches against it is what the generator can measure at most.
 *
 *     constant BODY_BYTES      listens on a free port of the loopback and prints it
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define INPUT_BYTES 65536

struct connection {
    int fd;
    char input[INPUT_BYTES];
    size_t filled, body, sent;
    bool answering;
};

static char *answer;
static size_t answer_bytes;

static bool send_answer(struct connection *c) {
    while (c->sent < answer_bytes) {
        ssize_t count = send(c->fd, answer + c->sent, answer_bytes - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count <= 0) return false;
        c->sent += (size_t)count;
    }
    c->answering = false;
    return true;
}

static void end(struct connection *c) {
    close(c->fd);
    free(c);
}

static void serve(struct connection *c, uint32_t events) {
    if (c->answering) {
        if (events & (EPOLLHUP | EPOLLERR)) end(c); else send_answer(c);
        return;
    }
    for (;;) {
        ssize_t count = c->body ? recv(c->fd, c->input, c->body, MSG_DONTWAIT | MSG_TRUNC)
                                : recv(c->fd, c->input + c->filled, INPUT_BYTES - 1 - c->filled, MSG_DONTWAIT);
        if (count == 0) { end(c); return; }
        if (count < 0) return;
        if (c->body) {
            c->body -= (size_t)count;
        } else {
            c->filled += (size_t)count;
            c->input[c->filled] = 0;
            char *head_end = strstr(c->input, "\r\n\r\n"), *length = strcasestr(c->input, "content-length:");
            if (!head_end) continue;
            size_t size = length && length < head_end ? strtoull(length + 15, NULL, 10) : 0;
            size_t there = c->filled - (size_t)(head_end + 4 - c->input);
            c->body = size > there ? size - there : 0;
            c->filled = 0;
        }
        if (c->body) continue;
        c->sent = 0;
        c->answering = true;
        if (!send_answer(c)) return;
    }
}

int main(int count, char **words) {
    size_t size = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    answer = malloc(size + 256);
    int head = sprintf(answer, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", size);
    memset(answer + head, 'x', size);
    answer_bytes = (size_t)head + size;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, address_bytes) < 0 || listen(listener, 128) < 0) return 1;
    getsockname(listener, (struct sockaddr *)&address, &address_bytes);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN}, events[128];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, 128, -1);
        for (int number = 0; number < ready; number++) {
            if (events[number].data.ptr) { serve(events[number].data.ptr, events[number].events); continue; }
            struct connection *c = calloc(1, sizeof *c);
            if ((c->fd = accept(listener, NULL, NULL)) < 0) { free(c); continue; }
            setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
            epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
        }
    }
}

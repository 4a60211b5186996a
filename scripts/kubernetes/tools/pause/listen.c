// listen PORT: holds a port of its pod, so that nobody else has it.
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int number) { (void)number; _exit(0); }

int main(int count, char** words) {
  struct sockaddr_in6 all;
  int in = socket(AF_INET6, SOCK_STREAM, 0);
  signal(SIGTERM, end);
  memset(&all, 0, sizeof all);
  all.sin6_family = AF_INET6;  // and IPv4 with it
  all.sin6_port = htons((unsigned short)atoi(count > 1 ? words[1] : "0"));
  if (bind(in, (struct sockaddr*)&all, sizeof all) != 0 || listen(in, 1) != 0) return 1;
  for (;;) pause();
}

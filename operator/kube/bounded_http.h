// HTTP connections that read no more than they are allowed to, however the peer frames it: heads,
// header lines, chunk sizes and bodies without end all stop at the same count. The library
// (cpp-httplib) bounds none of these for a client. Nor do they send what may not be sent any more.
// Internal to operator/kube.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace httplib {
class ClientImpl;
}

namespace meshtrain::kube {

// What the exchange under way may still read, and whether it may go out. Set it before a request is
// sent; the handlers of the answer may raise it. It belongs to the thread that sends.
struct Allowance {
  size_t left = 0;                   // bytes
  Duration until = Duration::max();  // monotonic; the last read begins before
  bool spent = false;                // a read was refused for want of `left`
  // Asked before every piece of the request goes to the socket: the connection may have taken long
  // to be made. After an error nothing more is sent; as the request is not whole, the server does
  // not act on it. Empty: all may go out.
  std::function<Status()> may_send;
  Status withheld;  // what `may_send` said, where that was an error
};

// `allowance` and `clock` are borrowed.
std::unique_ptr<httplib::ClientImpl> NewPlainConnection(const std::string& host, int port,
                                                        Allowance& allowance, Clock& clock);
// `certificate` and `key`: paths of PEM files, "" for none. ClientImpl::is_valid() tells whether
// they could be used.
std::unique_ptr<httplib::ClientImpl> NewTlsConnection(const std::string& host, int port,
                                                      const std::string& certificate,
                                                      const std::string& key, Allowance& allowance,
                                                      Clock& clock);

}  // namespace meshtrain::kube

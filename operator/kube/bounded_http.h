// HTTP connections that read no more than they are allowed to, however the peer frames it: heads,
// header lines, chunk sizes and bodies without end all stop at the same count. The library
// (cpp-httplib) bounds none of these for a client. Internal to operator/kube.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/base/clock.h"

namespace httplib {
class ClientImpl;
}

namespace meshtrain::kube {

// What the exchange under way may still read. Set it before a request is sent; the handlers of the
// answer may raise it. It belongs to the thread that sends.
struct Allowance {
  size_t left = 0;                   // bytes
  Duration until = Duration::max();  // monotonic; the last read begins before
  bool spent = false;                // a read was refused for want of `left`
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

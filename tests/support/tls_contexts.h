// Certificates of a job on this machine, for tests of what is sealed with them.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "operator/certificates/certificates.h"
#include "runtime/wire/tls.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::testing_support {

// Of an authority of their own for each call; good for `hosts`. Ends the test where OpenSSL cannot.
inline std::shared_ptr<const wire::TlsContext> NewTlsContext(
    const std::vector<std::string>& hosts = {"127.0.0.1", "localhost"}) {
  const auto made = certificates::MakeJobCertificates("test", hosts, SystemClock().Now()).value();
  const testing_folder::TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  };
  return wire::TlsContext::Create({.ca = write("ca.crt", made.ca),
                                   .certificate = write("tls.crt", made.certificate),
                                   .key = write("tls.key", made.key)})
      .value();
}

}  // namespace meshtrain::testing_support

// Certificates for mutual TLS between the processes of one job: an authority of the job's own, and
// what it signs. All in PEM, keys on the curve P-256.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

struct evp_pkey_st;  // OpenSSL's
struct x509_st;

namespace meshtrain::certificates {

struct Validity {
  TimePoint from, until;
};

struct Signed {
  std::string certificate;
  std::string key;
};

class Authority {
 public:
  // `name`: its common name, for people.
  static Result<std::unique_ptr<Authority>> Create(const std::string& name, Validity validity);
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  const std::string& certificate() const { return pem_; }
  // For both sides of a connection. `hosts`: host names, of which the first label may be `*`, and
  // numeric addresses.
  Result<Signed> Sign(const std::string& name, const std::vector<std::string>& hosts,
                      Validity validity) const;

 private:
  Authority(x509_st* certificate, evp_pkey_st* key, std::string pem)
      : certificate_(certificate), key_(key), pem_(std::move(pem)) {}
  x509_st* const certificate_;
  evp_pkey_st* const key_;
  const std::string pem_;
};

// What every process of a job holds. The authority's own key is gone when this is made: nobody can
// sign for the job afterwards, so its certificates are those for as long as the job lives.
struct JobCertificates {
  std::string ca;
  std::string certificate;
  std::string key;
};
// Good from a day before `now`, for hosts whose clocks are behind, for ten years.
Result<JobCertificates> MakeJobCertificates(const std::string& job,
                                            const std::vector<std::string>& hosts, TimePoint now);

}  // namespace meshtrain::certificates

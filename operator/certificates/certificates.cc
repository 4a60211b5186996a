#include "operator/certificates/certificates.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <chrono>
#include <utility>

#include "runtime/base/text.h"

namespace meshtrain::certificates {
namespace {

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* what) const {
    function(what);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

constexpr size_t kMostCommonName = 64;  // X.520's bound

Status Failed(const char* what) {
  const unsigned long code = ERR_get_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return Internal(std::string("certificates: ") + what + ": " +
                  (reason == nullptr ? "OpenSSL gives no reason" : reason));
}

bool SetTime(ASN1_TIME* to, TimePoint when) {
  return ASN1_TIME_set(
             to, std::chrono::system_clock::to_time_t(
                     std::chrono::time_point_cast<std::chrono::system_clock::duration>(when))) !=
         nullptr;
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

std::string AlternativeName(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  const bool address =
      inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
  return (address ? "IP:" : "DNS:") + host;
}

// A new certificate without extensions and signature.
Result<Certificate> Begin(const std::string& name, Validity validity, EVP_PKEY* key) {
  Certificate made(X509_new());
  if (made == nullptr || X509_set_version(made.get(), 2) != 1) return Failed("cannot begin");
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof serial) != 1) return Failed("no random number");
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);  // positive, of full length
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(BN_bin2bn(serial, sizeof serial, nullptr));
  X509_NAME* const subject = X509_get_subject_name(made.get());
  const std::string common = name.substr(0, kMostCommonName);
  if (number == nullptr ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) == nullptr ||
      !SetTime(X509_getm_notBefore(made.get()), validity.from) ||
      !SetTime(X509_getm_notAfter(made.get()), validity.until) ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common.data()),
                                 static_cast<int>(common.size()), -1, 0) != 1 ||
      X509_set_pubkey(made.get(), key) != 1) {
    return Failed("cannot fill in a certificate");
  }
  return made;
}

// "": OpenSSL could not write it.
template <typename Write>
std::string Pem(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return {};
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(length)};
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

Result<std::unique_ptr<Authority>> Authority::Create(const std::string& name, Validity validity) {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("cannot make a key");
  MT_ASSIGN_OR_RETURN(Certificate made, Begin(name, validity, key.get()));
  if (X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) != 1 ||
      !AddExtension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign") ||
      !AddExtension(made.get(), made.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(made.get(), key.get(), EVP_sha256()) == 0) {
    return Failed("cannot sign the authority");
  }
  std::string pem = PemOf(made.get());
  if (pem.empty()) return Failed("cannot write the authority");
  return std::unique_ptr<Authority>(new Authority(made.release(), key.release(), std::move(pem)));
}

Authority::~Authority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

Result<Signed> Authority::Sign(const std::string& name, const std::vector<std::string>& hosts,
                               Validity validity) const {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("cannot make a key");
  MT_ASSIGN_OR_RETURN(const Certificate made, Begin(name, validity, key.get()));
  std::vector<std::string> names;
  for (const std::string& host : hosts) names.push_back(AlternativeName(host));
  if (X509_set_issuer_name(made.get(), X509_get_subject_name(certificate_)) != 1 ||
      !AddExtension(made.get(), certificate_, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(made.get(), certificate_, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(made.get(), certificate_, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(made.get(), certificate_, NID_authority_key_identifier, "keyid:always") ||
      (!names.empty() &&
       !AddExtension(made.get(), certificate_, NID_subject_alt_name, Join(names, ","))) ||
      X509_sign(made.get(), key_, EVP_sha256()) == 0) {
    return Failed("cannot sign a certificate");
  }
  Signed out{.certificate = PemOf(made.get()), .key = Pem([&](BIO* bio) {
                                                 return PEM_write_bio_PrivateKey(
                                                     bio, key.get(), nullptr, nullptr, 0, nullptr,
                                                     nullptr);
                                               })};
  if (out.certificate.empty() || out.key.empty()) return Failed("cannot write a certificate");
  return out;
}

Result<JobCertificates> MakeJobCertificates(const std::string& job,
                                            const std::vector<std::string>& hosts, TimePoint now) {
  const Validity validity{.from = now - std::chrono::hours(24),
                          .until = now + std::chrono::hours(24 * 3650)};
  MT_ASSIGN_OR_RETURN(const auto authority, Authority::Create("authority of " + job, validity));
  MT_ASSIGN_OR_RETURN(Signed signed_by_it, authority->Sign(job, hosts, validity));
  return JobCertificates{.ca = authority->certificate(),
                         .certificate = std::move(signed_by_it.certificate),
                         .key = std::move(signed_by_it.key)};
}

}  // namespace meshtrain::certificates

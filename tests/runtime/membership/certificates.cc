#include "tests/runtime/membership/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <memory>

#include "runtime/base/check.h"
#include "runtime/base/file.h"

namespace meshtrain::membership {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

void AddExtension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  MT_CHECK(extension != nullptr);
  MT_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// `issuer` null: signed by itself.
Certificate Make(const char* name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key) {
  Certificate out(X509_new(), X509_free);
  X509_set_version(out.get(), 2);
  uint64_t serial = 0;
  MT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(out.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(out.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(out.get()), 3600);
  X509_set_pubkey(out.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(out.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(out.get(), X509_get_subject_name(issuer == nullptr ? out.get() : issuer));
  if (issuer == nullptr) {
    AddExtension(out.get(), out.get(), NID_basic_constraints, "critical,CA:TRUE");
  } else {
    AddExtension(out.get(), issuer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  }
  MT_CHECK(X509_sign(out.get(), issuer_key, EVP_sha256()) > 0);
  return out;
}

template <typename Write>
void WritePem(const std::string& path, Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), BIO_free);
  MT_CHECK(write(memory.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);  // NOLINT: OpenSSL's type
  MT_CHECK(WriteFileAtomically(path, {data, static_cast<size_t>(size)}).ok());
}

}  // namespace

void WriteCertificates(const std::string& folder) {
  MT_CHECK(MakeDirectories(folder).ok());
  const Key ca_key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  MT_CHECK(ca_key != nullptr && key != nullptr);
  const Certificate ca = Make("test authority", ca_key.get(), nullptr, ca_key.get());
  const Certificate certificate = Make("member", key.get(), ca.get(), ca_key.get());
  WritePem(folder + "/ca.pem", [&](BIO* out) { return PEM_write_bio_X509(out, ca.get()); });
  WritePem(folder + "/cert.pem",
           [&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); });
  WritePem(folder + "/key.pem", [&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

}  // namespace meshtrain::membership

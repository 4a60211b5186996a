#include "operator/certificates/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace meshtrain::certificates {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> in(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), X509_free);
  if (certificate == nullptr) return "no certificate";
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), BIO_free_all);
  X509_print(out.get(), certificate.get());
  char* text = nullptr;
  const long length = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(length)};
}

// What other programs see of them. That peers trust them is wire's TlsTest's.
TEST(CertificatesTest, AJobHasAnAuthorityOfItsOwnAndOneCertificateForItsHosts) {
  const TimePoint now{std::chrono::seconds(1'700'000'000)};  // 14 November 2023
  const auto made = MakeJobCertificates("ml/mnist", {"*.mnist.ml.svc", "127.0.0.1"}, now);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::string ca = Text(made->ca), certificate = Text(made->certificate);
  EXPECT_THAT(ca, HasSubstr("CA:TRUE, pathlen:0"));
  EXPECT_THAT(ca, ContainsRegex("Subject: CN ?= ?authority of ml"));
  EXPECT_THAT(ca, HasSubstr("Certificate Sign"));
  EXPECT_THAT(certificate, HasSubstr("CA:FALSE"));
  EXPECT_THAT(certificate, ContainsRegex("Issuer: CN ?= ?authority of ml"));
  EXPECT_THAT(certificate, HasSubstr("DNS:*.mnist.ml.svc, IP Address:127.0.0.1"));
  EXPECT_THAT(certificate,
              HasSubstr("TLS Web Server Authentication, TLS Web Client Authentication"));
  EXPECT_THAT(certificate, HasSubstr("Not Before: Nov 13 "));
  EXPECT_THAT(certificate, HasSubstr(" 2033 GMT"));
  EXPECT_THAT(made->key, HasSubstr("BEGIN PRIVATE KEY"));
  // Nobody can sign for the job with what is in the Secret.
  EXPECT_THAT(made->ca, Not(HasSubstr("PRIVATE")));
  const auto again = MakeJobCertificates("ml/mnist", {"*.mnist.ml.svc"}, now);
  ASSERT_TRUE(again.ok());
  EXPECT_NE(again->ca, made->ca);
  EXPECT_NE(again->key, made->key);
}

TEST(CertificatesTest, ALongNameIsCutAndNotRefused) {
  const auto made = MakeJobCertificates(std::string(300, 'n'), {"h"}, SystemClock().Now());
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT(Text(made->certificate), ContainsRegex("Subject: CN ?= ?n{64}\n"));
}

}  // namespace
}  // namespace meshtrain::certificates

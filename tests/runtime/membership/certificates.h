// Certificates for tests: an authority, and what it signed.
#pragma once

#include <string>

namespace meshtrain::membership {

// Writes FOLDER/ca.pem and, signed by it, FOLDER/cert.pem with FOLDER/key.pem, good for localhost
// and 127.0.0.1 for an hour. Each call makes another authority.
void WriteCertificates(const std::string& folder);

}  // namespace meshtrain::membership

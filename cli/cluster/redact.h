// Texts and objects without what looks like a secret, by names and not by values.
//
// A name says that its value is secret where it holds token (not tokens, tokenizer), password,
// passwd, secret, credential, or key as a word of its own: API_KEY, privateKey, --key; not monkey,
// keyboard, topologyKey.
#pragma once

#include <string>
#include <string_view>

namespace meshtrain::cli {

// Without the values of JSON members, of NAME=VALUE, NAME: VALUE and --NAME VALUE, and of lists'
// elements after a flag, where the name says so; without bearer tokens and the password of
// user:password@ in URLs. `--token=abc` becomes `--token=REDACTED`. A JSON member that is called
// just "key" stays: selectors and tolerations have one.
std::string Redacted(std::string_view text);

// A JSON object, indented, with every string as Redacted has it, and without the values of members,
// of variables ({"name": NAME, "value": VALUE}) and of elements after a flag whose name says so.
// What the server alone needs (metadata.managedFields, the copy that `kubectl apply` keeps) is left
// out.
std::string RedactedObject(std::string_view json);

}  // namespace meshtrain::cli

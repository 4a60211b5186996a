// What messages_server.cc and messages_worker.cc share. Protobuf's types are only named here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"
#include "runtime/parameter/messages/messages.h"

namespace meshtrain::v1 {
class TensorType;
}

namespace meshtrain::parameter::internal {

// v1::DType's number: it counts from 1, in the order of mesh::DType.
int ToWire(mesh::DType dtype);
Result<mesh::DType> DTypeFromWire(int dtype);
void ToWire(const mesh::TensorType& from, v1::TensorType* to);
// Errors: also for more elements than any memory holds, since whoever receives a type allocates its
// bytes.
Result<mesh::TensorType> FromWire(const v1::TensorType& from);

// --- lists of the same

template <typename List>
void ToWire(const std::vector<std::string>& from, List* to) {
  for (const std::string& text : from) to->Add(std::string(text));
}
template <typename List>
std::vector<std::string> Texts(const List& from) {
  return {from.begin(), from.end()};
}
template <typename List>
void TypesToWire(const std::vector<mesh::TensorType>& from, List* to) {
  for (const mesh::TensorType& type : from) ToWire(type, to->Add());
}
template <typename List>
Result<std::vector<mesh::TensorType>> Types(const List& from) {
  std::vector<mesh::TensorType> types;
  for (const v1::TensorType& type : from) {
    MT_ASSIGN_OR_RETURN(mesh::TensorType one, FromWire(type));
    types.push_back(std::move(one));
  }
  return types;
}
// Names and types in two lists of one length.
template <typename Names, typename WireTypes>
Result<std::vector<NamedType>> NamedTypes(const Names& names, const WireTypes& types) {
  if (names.size() != types.size()) {
    return InvalidArgument("expected a type for each name, got: another number");
  }
  std::vector<NamedType> out;
  for (int i = 0; i < names.size(); ++i) {
    MT_ASSIGN_OR_RETURN(mesh::TensorType type, FromWire(types[i]));
    out.push_back({names[i], std::move(type)});
  }
  return out;
}

template <typename Message>
Result<Message> Parse(std::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("expected a " + message.GetTypeName() + " of " +
                           std::to_string(bytes.size()) + " bytes, got: something else");
  }
  return message;
}

}  // namespace meshtrain::parameter::internal

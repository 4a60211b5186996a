// A message's fields, listed once: one function `Fields` for each message says which member goes
// into which field of the wire's message, and both directions walk that one list.
//
//   void Fields(auto& walk, Of<CutRequest> auto& m) {
//     walk(m.term, MT_WIRE(term));
//     walk(m.folder, MT_WIRE(folder));
//   }
//
// Writer calls it with a const message and sets the wire's fields; Reader calls it with a message
// of defaults and gives the members what came. A field that travels in one direction only cannot be
// written down. What a member's type travels as:
//   numbers, bool, text, DType        a field; optional<DType>: unspecified where it is none
//   TensorType; Tensor                v1::TensorType; of a tensor only its type
//   Program                           bytes: a serialized v1::Program
//   map<string, string>               a map
//   vector<T>                         a repeated field
//   another struct, or a variant      a message, by its own Fields
// Fields stand in this namespace, where the walkers find them. Protobuf's types are only named
// here.
#pragma once

#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"
#include "runtime/mesh/tensor.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/program/program.h"

namespace meshtrain::v1 {
class TensorType;
}

namespace google::protobuf {
class MessageLite;
}

namespace meshtrain::parameter::internal {

// v1::DType's number: it counts from 1, in the order of mesh::DType.
int ToWire(mesh::DType dtype);
Result<mesh::DType> DTypeFromWire(int dtype);
void ToWire(const mesh::TensorType& from, v1::TensorType* to);
// Errors: also for more elements than any memory holds, since whoever receives a type allocates its
// bytes.
Result<mesh::TensorType> FromWire(const v1::TensorType& from);

// `M` is a T that is read or, const, one that is written.
template <typename M, typename T>
concept Of = std::same_as<std::remove_const_t<M>, T>;

// A field of any wire message that has one of that name.
template <typename Get, typename Set, typename Edit, typename Has>
struct WireField {
  Get get;
  Set set;    // of a number, a bool, an enum
  Edit edit;  // of all else: a pointer to it
  Has has;    // of a oneof
};
// Said for clang 16, which does not find it for aggregates.
template <typename Get, typename Set, typename Edit, typename Has>
WireField(Get, Set, Edit, Has) -> WireField<Get, Set, Edit, Has>;
#define MT_WIRE(field)                                                                             \
  ::meshtrain::parameter::internal::WireField {                                                    \
    [](const auto& w) -> decltype(auto) { return w.field(); },                                     \
        [](auto& w, auto value) {                                                                  \
          w.set_##field(static_cast<std::remove_cvref_t<decltype(w.field())>>(value));             \
        },                                                                                         \
        [](auto& w) { return w.mutable_##field(); }, [](const auto& w) { return w.has_##field(); } \
  }

// One alternative of a variant: T in the wire's `field`. With a member of T, only that one travels,
// and T has no others.
template <typename T, typename Field, typename Member>
struct Alternative {
  Field field;
  Member member;
  auto& In(auto& value) const {
    if constexpr (std::is_same_v<Member, std::nullptr_t>) {
      return value;
    } else {
      return value.*member;
    }
  }
};
template <typename T, typename Field, typename Member = std::nullptr_t>
auto As(Field field, Member member = nullptr) {
  return Alternative<T, Field, Member>{std::move(field), member};
}
// The same for a struct with an enum beside its members: `value` travels where the enum is `kind`.
template <typename Kind, typename Value, typename Field>
struct Kinded {
  Kind kind;
  Value& value;
  Field field;
};
template <typename Kind, typename Value, typename Field>
auto Where(Kind kind, Value& value, Field field) {
  return Kinded<Kind, Value, Field>{kind, value, std::move(field)};
}

template <typename T>
inline constexpr bool kIsMap = false;
template <typename T>
inline constexpr bool kIsMap<std::map<std::string, T>> = true;
template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <typename Wire>
class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(Wire& to) : to_(to) {}

  template <typename T, typename Field>
  void operator()(const T& value, const Field& at) {
    if constexpr (std::is_arithmetic_v<T>) {
      at.set(to_, value);
    } else if constexpr (std::is_same_v<T, mesh::DType>) {
      at.set(to_, ToWire(value));
    } else if constexpr (std::is_same_v<T, std::optional<mesh::DType>>) {
      if (value) at.set(to_, ToWire(*value));
    } else if constexpr (std::is_empty_v<T>) {
      at.set(to_, true);
    } else if constexpr (kIsMap<T>) {
      at.edit(to_)->insert(value.begin(), value.end());
    } else if constexpr (kIsVector<T>) {
      WriteList(value, at.edit(to_));
    } else {
      WriteOne(value, at.edit(to_));
    }
  }
  // An enum, which counts from 0 to `last`, as the number.
  template <typename E, typename Field>
  void Enum(const E& value, E, const Field& at) {
    at.set(to_, static_cast<int>(value));
  }
  // Members that the wire keeps in a message of their own.
  template <typename Field, typename Inner>
  void Within(const Field& at, const Inner& inner) {
    auto* const to = at.edit(to_);
    Writer<std::remove_pointer_t<decltype(at.edit(to_))>> walk(*to);
    inner(walk);
  }
  // Names and types in two lists of one length.
  template <typename Names, typename Types>
  void Both(const std::vector<mesh::NamedType>& value, const Names& names, const Types& types) {
    for (const mesh::NamedType& one : value) {
      WriteOne(one.name, names.edit(to_)->Add());
      WriteOne(one.type, types.edit(to_)->Add());
    }
  }
  template <typename Variant, typename... T, typename... Field, typename... Member>
  void OneOf(const Variant& value, const char*, const Alternative<T, Field, Member>&... as) {
    const auto one = [&]<typename U, typename F, typename N>(const Alternative<U, F, N>& a) {
      if (const U* held = std::get_if<U>(&value)) (*this)(a.In(*held), a.field);
    };
    (one(as), ...);
  }
  template <typename Kind, typename... K>
  void OneOfKind(const Kind& kind, const char*, const K&... where) {
    const auto one = [&](const auto& w) {
      if (kind == w.kind) (*this)(w.value, w.field);
    };
    (one(where), ...);
  }

 private:
  template <typename List, typename T>
  static void WriteList(const std::vector<T>& from, List* to) {
    for (const T& one : from) {
      if constexpr (std::is_arithmetic_v<T>) {
        to->Add(one);
      } else {
        WriteOne(one, to->Add());
      }
    }
  }
  template <typename T, typename To>
  static void WriteOne(const T& from, To* to) {
    if constexpr (std::is_same_v<T, std::string>) {
      *to = from;
    } else if constexpr (std::is_same_v<T, Program>) {
      *to = program::SerializeProgram(from);
    } else if constexpr (std::is_same_v<T, mesh::TensorType>) {
      ToWire(from, to);
    } else if constexpr (std::is_same_v<T, mesh::Tensor>) {
      ToWire(from.type(), to);
    } else {
      Writer<To> walk(*to);
      Fields(walk, from);
    }
  }

  Wire& to_;
};

// The first error stays, and nothing is read after it.
template <typename Wire>
class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(const Wire& from) : from_(from) {}

  // kInvalidArgument: a field holds what its member cannot.
  const Status& status() const { return status_; }

  template <typename T, typename Field>
  void operator()(T& value, const Field& at) {
    if (!status_.ok()) return;
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(at.get(from_));
    } else if constexpr (std::is_same_v<T, mesh::DType>) {
      Take(DTypeFromWire(at.get(from_)), &value);
    } else if constexpr (std::is_same_v<T, std::optional<mesh::DType>>) {
      if (at.get(from_) != 0) Take(DTypeFromWire(at.get(from_)), &value);
    } else if constexpr (std::is_empty_v<T>) {
      // That it is there says all.
    } else if constexpr (kIsMap<T>) {
      value.insert(at.get(from_).begin(), at.get(from_).end());
    } else if constexpr (kIsVector<T>) {
      ReadList(at.get(from_), &value);
    } else {
      ReadOne(at.get(from_), &value);
    }
  }
  template <typename E, typename Field>
  void Enum(E& value, E last, const Field& at) {
    if (!status_.ok()) return;
    const auto number = static_cast<int>(at.get(from_));
    if (number < 0 || number > static_cast<int>(last)) {
      status_ =
          InvalidArgument("expected a number of 0 to " + std::to_string(static_cast<int>(last)) +
                          ", got: " + std::to_string(number));
      return;
    }
    value = static_cast<E>(number);
  }
  template <typename Field, typename Inner>
  void Within(const Field& at, const Inner& inner) {
    if (!status_.ok()) return;
    Reader<std::remove_cvref_t<decltype(at.get(from_))>> walk(at.get(from_));
    inner(walk);
    status_ = walk.status();
  }
  template <typename Names, typename Types>
  void Both(std::vector<mesh::NamedType>& value, const Names& names, const Types& types) {
    if (!status_.ok()) return;
    if (names.get(from_).size() != types.get(from_).size()) {
      status_ = InvalidArgument("expected a type for each name, got: another number");
      return;
    }
    for (int i = 0; i < names.get(from_).size() && status_.ok(); ++i) {
      mesh::NamedType one;
      ReadOne(names.get(from_)[i], &one.name);
      ReadOne(types.get(from_)[i], &one.type);
      value.push_back(std::move(one));
    }
  }
  template <typename Variant, typename... T, typename... Field, typename... Member>
  void OneOf(Variant& value, const char* expected, const Alternative<T, Field, Member>&... as) {
    if (!status_.ok()) return;
    bool found = false;
    const auto one = [&]<typename U, typename F, typename N>(const Alternative<U, F, N>& a) {
      if (!a.field.has(from_)) return;
      found = true;
      (*this)(a.In(value.template emplace<U>()), a.field);
    };
    (one(as), ...);
    if (!found) status_ = InvalidArgument(std::string(expected) + ", got: another");
  }
  template <typename Kind, typename... K>
  void OneOfKind(Kind& kind, const char* expected, const K&... where) {
    if (!status_.ok()) return;
    bool found = false;
    const auto one = [&](const auto& w) {
      if (!w.field.has(from_)) return;
      found = true;
      kind = w.kind;
      (*this)(w.value, w.field);
    };
    (one(where), ...);
    if (!found) status_ = InvalidArgument(std::string(expected) + ", got: another");
  }

 private:
  template <typename T, typename To>
  void Take(Result<T> result, To* to) {
    if (result.ok()) {
      *to = std::move(*result);
    } else {
      status_ = result.status();
    }
  }
  template <typename List, typename T>
  void ReadList(const List& from, std::vector<T>* to) {
    if constexpr (std::is_arithmetic_v<T>) {
      to->assign(from.begin(), from.end());
    } else {
      for (const auto& one : from) {
        if (!status_.ok()) return;
        ReadOne(one, &to->emplace_back());
      }
    }
  }
  template <typename From, typename T>
  void ReadOne(const From& from, T* to) {
    if constexpr (std::is_same_v<T, std::string>) {
      *to = from;
    } else if constexpr (std::is_same_v<T, Program>) {
      Take(program::DeserializeProgram(from), to);
    } else if constexpr (std::is_same_v<T, mesh::TensorType>) {
      Take(FromWire(from), to);
    } else if constexpr (std::is_same_v<T, mesh::Tensor>) {
      mesh::TensorType type;
      Take(FromWire(from), &type);
      if (status_.ok()) *to = mesh::Tensor(type);
    } else {
      Reader<From> walk(from);
      Fields(walk, *to);
      status_ = walk.status();
    }
  }

  const Wire& from_;
  Status status_;
};

// Equal messages are equal bytes: entries of a map stand in the order of their keys.
std::string BytesOf(const google::protobuf::MessageLite& message);
template <typename Wire, typename M>
std::string EncodeAs(const M& message) {
  Wire out;
  Writer<Wire> walk(out);
  Fields(walk, message);
  return BytesOf(out);
}
template <typename Wire, typename M>
Result<M> DecodeAs(std::string_view bytes) {
  Wire from;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("expected a " + from.GetTypeName() + " of " +
                           std::to_string(bytes.size()) + " bytes, got: something else");
  }
  Result<M> message = M();
  Reader<Wire> walk(from);
  Fields(walk, *message);
  MT_RETURN_IF_ERROR(walk.status());
  return message;
}

// Encode and Decode of a message that travels as v1::WIRE. In namespace meshtrain::parameter.
#define MT_MESSAGE(message, wire)                                                               \
  std::string Encode(const message& m) { return internal::EncodeAs<::meshtrain::v1::wire>(m); } \
  template <>                                                                                   \
  Result<message> Decode<message>(std::string_view bytes) {                                     \
    return internal::DecodeAs<::meshtrain::v1::wire, message>(bytes);                           \
  }

}  // namespace meshtrain::parameter::internal

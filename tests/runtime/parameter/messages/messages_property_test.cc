// Every message with any values comes back equal, and uses every field that the wire has for it.
//
// The members of each message stand here once more, as structured bindings, on purpose: a member
// that is added to a message does not compile here before it is listed, and then does not come back
// before messages_*.cc carry it.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "runtime/parameter/messages/messages.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

#define MEMBERS(type, ...)        \
  auto Members(type& m) {         \
    auto& [__VA_ARGS__] = m;      \
    return std::tie(__VA_ARGS__); \
  }
MEMBERS(ServerState, a, b, c, d, e, f, g, h)
MEMBERS(NamedProgram, a, b)
MEMBERS(mesh::NamedType, a, b)
MEMBERS(Definition, a, b, c)
MEMBERS(SetUpRequest, a, b, c, d, e)
MEMBERS(EndRequest, a)
MEMBERS(DefineRequest, a, b, c)
MEMBERS(PushId, a, b, c)
MEMBERS(PushRequest, a, b, c, d, e, f, g)
MEMBERS(PushReply, a, b, c, d)
MEMBERS(PullRequest, a, b, c, d)
MEMBERS(PullReply, a, b, c)
MEMBERS(ReadRequest, a, b)
MEMBERS(ReadReply, a, b)
MEMBERS(CutRequest, a, b, c, d, e)
MEMBERS(CutReply, a)
MEMBERS(WriteRequest, a, b, c, d)
MEMBERS(WriteReply, a)
MEMBERS(CommittedRequest, a, b)
MEMBERS(PingRequest, a, b, c)
MEMBERS(ServerPingReply, a, b, c, d, e)
MEMBERS(PushTable::Entry, a, b, c, d)
MEMBERS(Base, a, b, c, d, e, f, g, h)
MEMBERS(LoggedPush, a, b, c, d, e)
MEMBERS(PulledPart, a, b, c, d)
MEMBERS(PushedPart, a, b, c)
MEMBERS(ServerPush, a, b, c)
MEMBERS(StepFunction, a, b, c, d, e, f)
MEMBERS(data::IdxFiles, a, b, c)
MEMBERS(data::MemoryArrays, a, b, c)
MEMBERS(data::TextFile, a, b, c, d, e, f)
MEMBERS(data::NamedFile, a, b)
MEMBERS(data::NpyFiles, a, b, c, d)
MEMBERS(data::ImageFolder, a, b)
// `cached` follows from the stages.
auto Members(data::SourceSpec& m) { return std::tie(m.from, m.take, m.first, m.every); }
MEMBERS(data::Scale, a)
MEMBERS(data::Normalize, a, b)
MEMBERS(data::Cast, a)
MEMBERS(data::RandomFlip, a, b)
MEMBERS(data::Window, a, b, c)
MEMBERS(data::RandomCrop, a)
MEMBERS(data::CenterCrop, a)
// Of mistakes in `places` the chief has told.
auto Members(data::MapStage& m) { return std::tie(m.ops, m.component, m.seed); }
std::tuple<> Members(data::CacheStage&) { return {}; }
MEMBERS(data::ShuffleStage, a, b, c)
MEMBERS(data::BatchStage, a, b)
MEMBERS(data::RepeatStage, a)
MEMBERS(data::PrefetchStage, a)
MEMBERS(data::PipelineSpec, a, b, c, d, e)
MEMBERS(Dataset, a, b, c, d)
MEMBERS(WorkerValue, a, b)
MEMBERS(CursorAt, a, b)
MEMBERS(WorkerSetUpRequest, a, b, c, d, e, f, g)
MEMBERS(WorkerSetUpReply, a)
MEMBERS(LoadRequest, a, b, c, d, e)
MEMBERS(RunArgument, a, b, c)
MEMBERS(RunRequest, a, b, c, d, e, f, g, h)
MEMBERS(RunReply, a, b, c, d, e, f, g, h)
MEMBERS(WorkerPingReply, a, b, c)
#undef MEMBERS

Program SampleProgram(int64_t rows) {
  program::Builder b("p");
  program::Builder::Scope scope(b);
  const program::Variable w("w", TensorType{DType::kF32, {rows}});
  b.Output("y", b.Input("x", {DType::kF32, {rows}}) * w);
  return b.Build().value();
}

template <typename T>
inline constexpr bool kIsMap = false;
template <typename T>
inline constexpr bool kIsMap<std::map<std::string, T>> = true;
template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsVariant = false;
template <typename... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;

// Fills values of any type, the bounds of numbers among them.
class Filler {
 public:
  explicit Filler(uint64_t seed) : random_(seed) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = Below(2) == 1;
    } else if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(static_cast<int64_t>(random_())) / 1024;
    } else if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const T bounds[] = {Limits::min(), Limits::max(), 0, static_cast<T>(-1)};
      value = Below(4) == 0 ? bounds[Below(4)] : static_cast<T>(random_());
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(Below(Kinds(value)));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.clear();
      for (uint64_t n = Below(9); n > 0; --n) value += static_cast<char>('a' + Below(26));
    } else if constexpr (std::is_same_v<T, Program>) {
      value = programs_[Below(2)];
    } else if constexpr (std::is_same_v<T, TensorType>) {
      (*this)(value.dtype);
      value.dims.resize(Below(4));
      for (int64_t& dim : value.dims) dim = static_cast<int64_t>(Below(5));
    } else if constexpr (std::is_same_v<T, Tensor>) {
      TensorType type;
      (*this)(type);
      value = Tensor(type);
    } else if constexpr (std::is_same_v<T, std::optional<DType>>) {
      value.reset();
      if (Below(2) == 0) (*this)(value.emplace());
    } else if constexpr (kIsMap<T>) {
      value.clear();
      for (uint64_t n = Below(4); n > 0; --n) {
        std::string key;
        (*this)(key);
        (*this)(value[key]);
      }
    } else if constexpr (std::is_same_v<T, Status>) {
      // Those whose origin is the same here and there.
      static const Origin kKept[] = {Origin::kManifest, Origin::kInput, Origin::kOutput,
                                     Origin::kNumbers, Origin::kPeers};
      std::string message = "x";
      (*this)(message);
      value = Below(3) == 0
                  ? OkStatus()
                  : Status(static_cast<StatusCode>(1 + Below(16)), message).From(kKept[Below(5)]);
    } else if constexpr (kIsVector<T>) {
      value.clear();
      for (uint64_t n = Below(4); n > 0; --n) (*this)(value.emplace_back());
    } else if constexpr (std::is_same_v<T, data::SourceOptions>) {
      Alternative(value, Below(kSourcesThatTravel));
    } else if constexpr (std::is_same_v<T, data::OwnSource>) {
      FAIL() << "a source of one's own stays in its process";
    } else if constexpr (kIsVariant<T>) {
      Alternative(value, Below(std::variant_size_v<T>));
    } else {
      std::apply([this](auto&... member) { ((*this)(member), ...); }, Members(value));
      if constexpr (std::is_same_v<T, RunArgument>) Clear(value);
    }
  }

 private:
  // Those before a source of one's own, which the coordinator refuses.
  static constexpr uint64_t kSourcesThatTravel = std::variant_size_v<data::SourceOptions> - 1;
  static_assert(std::is_same_v<std::variant_alternative_t<kSourcesThatTravel, data::SourceOptions>,
                               data::OwnSource>);
  uint64_t Below(uint64_t n) { return random_() % n; }
  static uint64_t Kinds(DType) { return std::size(mesh::kAllDTypes); }
  static uint64_t Kinds(ShardPolicy) { return 2; }
  static uint64_t Kinds(RunArgument::Kind) { return 3; }
  static uint64_t Kinds(RunReply::Cause) { return 2; }
  // Only what its kind has travels.
  static void Clear(RunArgument& argument) {
    if (argument.kind == RunArgument::Kind::kTensor) {
      argument.entry = 0;
    } else {
      argument.type = {};
    }
  }
  template <size_t I = 0, typename... T>
  void Alternative(std::variant<T...>& value, uint64_t which) {
    if constexpr (I < sizeof...(T)) {
      if (which == I) {
        (*this)(value.template emplace<I>());
      } else {
        Alternative<I + 1>(value, which);
      }
    }
  }

  std::mt19937_64 random_;
  const Program programs_[2] = {SampleProgram(2), SampleProgram(3)};
};

template <typename T>
bool Equal(T& a, T& b) {
  if constexpr (std::is_same_v<T, Program>) {
    return a.ToString() == b.ToString();
  } else if constexpr (std::is_same_v<T, data::OwnSource>) {
    return false;  // it does not travel
  } else if constexpr (std::is_same_v<T, Tensor>) {
    return a.type() == b.type();  // the values travel behind the head
  } else if constexpr (std::is_same_v<T, Status>) {
    return a == b && a.origin() == b.origin();
  } else if constexpr (kIsVector<T> && !std::is_same_v<T, std::vector<bool>>) {
    bool equal = a.size() == b.size();
    for (size_t i = 0; equal && i < a.size(); ++i) equal = Equal(a[i], b[i]);
    return equal;
  } else if constexpr (kIsVariant<T>) {
    return a.index() == b.index() &&
           std::visit(
               [&b](auto& held) { return Equal(held, std::get<std::decay_t<decltype(held)>>(b)); },
               a);
  } else if constexpr (requires { Members(a); }) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      [[maybe_unused]] auto left = Members(a);
      [[maybe_unused]] auto right = Members(b);
      return (Equal(std::get<I>(left), std::get<I>(right)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(Members(a))>>());
  } else {
    return a == b;
  }
}

// The fields that are set in a message, and in those within it.
void SetFields(const google::protobuf::Message& message, std::set<std::string>* out) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    out->insert(std::string(field->full_name()));
    if (field->message_type() == nullptr || field->is_map()) continue;
    if (!field->is_repeated()) {
      SetFields(reflection.GetMessage(message, field), out);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      SetFields(reflection.GetRepeatedMessage(message, field, i), out);
    }
  }
}
// All that there are.
void AllFields(const google::protobuf::Descriptor& type, std::set<std::string>* out) {
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    if (!out->insert(std::string(field.full_name())).second || field.is_map()) continue;
    if (field.message_type() != nullptr) AllFields(*field.message_type(), out);
  }
}

template <typename T>
class EachMessageTest : public ::testing::Test {};

using All = ::testing::Types<SetUpRequest, EndRequest, DefineRequest, PushRequest, PushReply,
                             PullRequest, PullReply, ReadRequest, ReadReply, CutRequest, CutReply,
                             WriteRequest, WriteReply, CommittedRequest, PingRequest,
                             ServerPingReply, LogRecord, WorkerSetUpRequest, WorkerSetUpReply,
                             LoadRequest, RunRequest, RunReply, WorkerPingReply>;

// The last part of the type's name, which is that of its message in the .proto files.
template <typename M>
std::string WireName() {
  if constexpr (std::is_same_v<M, LogRecord>) return "LogRecord";
  if constexpr (std::is_same_v<M, PingRequest>) return "ServerPingRequest";
  const std::string name = ::testing::internal::GetTypeName<M>();
  return name.substr(name.rfind(':') + 1);
}

TYPED_TEST_SUITE(EachMessageTest, All);

TYPED_TEST(EachMessageTest, ComesBackEqualAndUsesEveryField) {
  namespace pb = google::protobuf;
  const pb::Descriptor* type = pb::DescriptorPool::generated_pool()->FindMessageTypeByName(
      "meshtrain.v1." + WireName<TypeParam>());
  ASSERT_NE(type, nullptr) << WireName<TypeParam>();
  const pb::Message& empty = *pb::MessageFactory::generated_factory()->GetPrototype(type);
  std::set<std::string> used;
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 300; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    TypeParam message;
    Filler filler(s);
    filler(message);
    const std::string bytes = Encode(message);
    auto back = Decode<TypeParam>(bytes);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    ASSERT_TRUE(Equal(message, *back));
    const std::unique_ptr<pb::Message> wire(empty.New());
    ASSERT_TRUE(wire->ParseFromString(bytes));
    SetFields(*wire, &used);
  }
  std::set<std::string> all;
  AllFields(*type, &all);
  EXPECT_EQ(used, all);
}

// Cut or changed bytes are an error or another message, never a crash.
TYPED_TEST(EachMessageTest, ChangedBytesAreRefusedOrRead) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 300; ++s) {
    TypeParam message;
    Filler filler(s);
    filler(message);
    std::string bytes = Encode(message);
    std::mt19937_64 random(s);
    for (uint64_t n = 1 + random() % 4; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 3 == 0 && !bytes.empty()) bytes.resize(random() % bytes.size());
    auto got = Decode<TypeParam>(bytes);
    if (got.ok()) continue;
    EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument) << "MT_TEST_SEED=" << s;
  }
}

}  // namespace
}  // namespace meshtrain::parameter

// The wire form. Generated types stay in this file.

#include <limits>

#include "proto/meshtrain/v1/program.pb.h"
#include "runtime/program/program.h"

namespace meshtrain::program {
namespace {

namespace wire = ::meshtrain::v1;

constexpr uint32_t kVersion = 1;

// wire::DType counts from 1, in the order of DType.
wire::DType ToWire(DType dtype) { return static_cast<wire::DType>(static_cast<int>(dtype) + 1); }

void ToWire(const Attr& attr, wire::NamedAttr* to) {
  struct Visitor {
    wire::NamedAttr* to;
    void operator()(bool v) const { to->set_bool_value(v); }
    void operator()(int64_t v) const { to->set_int_value(v); }
    void operator()(double v) const { to->set_double_value(v); }
    void operator()(const std::string& v) const { to->set_text_value(v); }
    void operator()(const std::vector<int64_t>& v) const {
      to->mutable_ints_value()->mutable_items()->Assign(v.begin(), v.end());
    }
    void operator()(const std::vector<double>& v) const {
      to->mutable_doubles_value()->mutable_items()->Assign(v.begin(), v.end());
    }
  };
  std::visit(Visitor{to}, attr);
}

Status FromWire(const wire::TensorType& from, TensorType* to) {
  if (from.dtype() < wire::DTYPE_BOOL || from.dtype() > wire::DTYPE_F16) {
    return InvalidArgument("expected a known dtype, got: " + std::to_string(from.dtype()));
  }
  to->dtype = static_cast<DType>(from.dtype() - 1);
  to->dims.assign(from.dims().begin(), from.dims().end());
  // Through the text form, which knows what dimensions may be.
  const auto checked = TensorType::Parse(to->ToString());
  return checked.ok() ? OkStatus() : checked.status();
}

Result<Attr> FromWire(const wire::NamedAttr& from) {
  switch (from.value_case()) {
    case wire::NamedAttr::kBoolValue:
      return Attr(from.bool_value());
    case wire::NamedAttr::kIntValue:
      return Attr(int64_t{from.int_value()});
    case wire::NamedAttr::kDoubleValue:
      return Attr(from.double_value());
    case wire::NamedAttr::kTextValue:
      return Attr(from.text_value());
    case wire::NamedAttr::kIntsValue:
      return Attr(
          std::vector<int64_t>(from.ints_value().items().begin(), from.ints_value().items().end()));
    case wire::NamedAttr::kDoublesValue:
      return Attr(std::vector<double>(from.doubles_value().items().begin(),
                                      from.doubles_value().items().end()));
    case wire::NamedAttr::VALUE_NOT_SET:
      break;
  }
  return InvalidArgument("attribute `" + from.name() + "`: expected a value, got: none");
}

}  // namespace

std::string SerializeProgram(const Program& program) {
  wire::Program to;
  to.set_version(kVersion);
  to.set_name(program.name);
  for (const ValueInfo& value : program.values) {
    wire::TensorType* type = to.add_values();
    type->set_dtype(ToWire(value.type.dtype));
    type->mutable_dims()->Assign(value.type.dims.begin(), value.type.dims.end());
  }
  for (const Op& from : program.ops) {
    wire::Op* op = to.add_ops();
    op->set_kind(from.kind);
    for (const auto& [name, value] : from.attrs.items()) {
      wire::NamedAttr* attr = op->add_attrs();
      attr->set_name(name);
      ToWire(value, attr);
    }
    op->mutable_operands()->Assign(from.operands.begin(), from.operands.end());
    op->mutable_results()->Assign(from.results.begin(), from.results.end());
    op->set_path(from.path);
    op->set_file(from.where.file);
    op->set_line(from.where.line);
  }
  const auto add_port = [](const Port& from, wire::Port* port) {
    port->set_name(from.name);
    port->set_value(from.value);
  };
  for (const Port& p : program.inputs) add_port(p, to.add_inputs());
  for (const Port& p : program.outputs) add_port(p, to.add_outputs());
  for (const Port& p : program.watched) add_port(p, to.add_watched());
  for (const State& from : program.states) {
    wire::State* state = to.add_states();
    state->set_name(from.name);
    state->set_entry(from.entry);
    state->set_exit(from.exit);
  }
  return to.SerializeAsString();
}

Result<Program> DeserializeProgram(std::string_view bytes) {
  wire::Program from;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("program: expected the bytes of a meshtrain.v1.Program, got: " +
                           std::to_string(bytes.size()) + " others");
  }
  if (from.version() != kVersion) {
    return InvalidArgument("program: expected wire version " + std::to_string(kVersion) +
                           ", got: " + std::to_string(from.version()));
  }
  Program program;
  program.name = from.name();
  for (const wire::TensorType& type : from.values()) {
    ValueInfo& value = program.values.emplace_back();
    const Status status = FromWire(type, &value.type);
    if (!status.ok()) {
      return status.At("program: value %" + std::to_string(program.values.size() - 1));
    }
  }
  for (const wire::Op& wire_op : from.ops()) {
    Op op;
    const auto index = static_cast<int32_t>(program.ops.size());
    op.kind = wire_op.kind();
    for (const wire::NamedAttr& attr : wire_op.attrs()) {
      auto value = FromWire(attr);
      if (!value.ok()) return value.status().At("program: op " + std::to_string(index));
      op.attrs.Set(attr.name(), std::move(*value));
    }
    op.operands.assign(wire_op.operands().begin(), wire_op.operands().end());
    op.results.assign(wire_op.results().begin(), wire_op.results().end());
    op.path = wire_op.path();
    op.where = {wire_op.file(), wire_op.line()};
    for (const ValueId v : op.results) {
      // What is out of range, Validate names.
      if (v >= 0 && v < static_cast<ValueId>(program.values.size())) program.values[v].op = index;
    }
    program.ops.push_back(std::move(op));
  }
  for (const wire::Port& p : from.inputs()) program.inputs.push_back({p.name(), p.value()});
  for (const wire::State& s : from.states()) {
    program.states.push_back({s.name(), s.entry(), s.exit()});
  }
  for (const wire::Port& p : from.outputs()) program.outputs.push_back({p.name(), p.value()});
  for (const wire::Port& p : from.watched()) program.watched.push_back({p.name(), p.value()});
  const Status status = Validate(program);
  if (!status.ok()) return status.At("program");
  return program;
}

}  // namespace meshtrain::program

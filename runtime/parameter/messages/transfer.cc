#include "runtime/parameter/messages/transfer.h"

#include <random>

#include "runtime/base/check.h"

namespace meshtrain::parameter {

using mesh::Tensor;

uint64_t DrawBoot() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;
}

bool IsAway(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kCancelled || code == StatusCode::kResourceExhausted;
}

Piece PieceOf(const Tensor& tensor) {
  auto owner = std::make_shared<const Tensor>(tensor);
  const auto bytes = owner->bytes();
  return {bytes, std::move(owner)};
}

Piece RowsOf(const Tensor& tensor, int64_t row, int64_t rows) {
  Piece piece = PieceOf(tensor);
  if (tensor.dims().empty()) return piece;
  MT_CHECK(row >= 0 && rows >= 0 && row + rows <= tensor.dims()[0]);
  const int64_t row_bytes =
      tensor.dims()[0] == 0 ? 0 : tensor.type().num_bytes() / tensor.dims()[0];
  piece.bytes = piece.bytes.subspan(static_cast<size_t>(row * row_bytes),
                                    static_cast<size_t>(rows * row_bytes));
  return piece;
}

}  // namespace meshtrain::parameter

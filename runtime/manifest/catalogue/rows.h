// The rows of the catalogue: one line for each layer, optimizer, loss, metric and source.
//
//   ROW(ENTRY, MAKER)   ENTRY() gives name, types and bounds, in catalogue/KIND/NAME.cc: pure, linked
//                       by the operator too. MAKER makes the thing itself, in its own file in nn,
//                       train or data (nn::by_name::MAKER ...); runtime/recipe joins the two.
//
// A row without the one or the other does not link. A program adds rows of its own with
// recipe::AddRows (recipe/rows.h).
#pragma once

#include "runtime/manifest/field.h"

#define MT_LAYERS(ROW)                                \
  ROW(Dense, Dense)                                   \
  ROW(Flatten, Flatten)                               \
  ROW(Reshape, Reshape)                               \
  ROW(Activation, Activation)                         \
  ROW(Dropout, Dropout)                               \
  ROW(Permute, Permute)                               \
  ROW(RepeatVector, RepeatVector)                     \
  ROW(Add, Add)                                       \
  ROW(Subtract, Subtract)                             \
  ROW(Multiply, Multiply)                             \
  ROW(Average, Average)                               \
  ROW(Maximum, Maximum)                               \
  ROW(Minimum, Minimum)                               \
  ROW(Concatenate, Concatenate)                       \
  ROW(Embedding, Embedding)                           \
  ROW(PositionEmbedding, PositionEmbedding)           \
  ROW(MultiHeadAttention, MultiHeadAttention)         \
  ROW(Conv1d, Conv1d)                                 \
  ROW(Conv2d, Conv2d)                                 \
  ROW(Conv3d, Conv3d)                                 \
  ROW(MaxPooling1d, MaxPooling1d)                     \
  ROW(MaxPooling2d, MaxPooling2d)                     \
  ROW(MaxPooling3d, MaxPooling3d)                     \
  ROW(AveragePooling1d, AveragePooling1d)             \
  ROW(AveragePooling2d, AveragePooling2d)             \
  ROW(AveragePooling3d, AveragePooling3d)             \
  ROW(GlobalMaxPooling1d, GlobalMaxPooling1d)         \
  ROW(GlobalMaxPooling2d, GlobalMaxPooling2d)         \
  ROW(GlobalMaxPooling3d, GlobalMaxPooling3d)         \
  ROW(GlobalAveragePooling1d, GlobalAveragePooling1d) \
  ROW(GlobalAveragePooling2d, GlobalAveragePooling2d) \
  ROW(GlobalAveragePooling3d, GlobalAveragePooling3d) \
  ROW(BatchNormalization, BatchNormalization)         \
  ROW(LayerNormalization, LayerNormalization)         \
  ROW(GroupNormalization, GroupNormalization)         \
  ROW(RmsNormalization, RmsNormalization)             \
  ROW(Conv1dTranspose, Conv1dTranspose)               \
  ROW(Conv2dTranspose, Conv2dTranspose)               \
  ROW(Conv3dTranspose, Conv3dTranspose)               \
  ROW(DepthwiseConv1d, DepthwiseConv1d)               \
  ROW(DepthwiseConv2d, DepthwiseConv2d)

#define MT_OPTIMIZERS(ROW)  \
  ROW(Adam, Adam)           \
  ROW(AdamPaper, AdamPaper) \
  ROW(AdamW, AdamW)         \
  ROW(Adamax, Adamax)       \
  ROW(Nadam, Nadam)         \
  ROW(Sgd, Sgd)             \
  ROW(Rmsprop, Rmsprop)     \
  ROW(Adagrad, Adagrad)     \
  ROW(Ftrl, Ftrl)           \
  ROW(Lion, Lion)

#define MT_LOSSES(ROW)                                              \
  ROW(SparseCategoricalCrossentropy, SparseCategoricalCrossentropy) \
  ROW(CategoricalCrossentropy, CategoricalCrossentropy)             \
  ROW(BinaryCrossentropy, BinaryCrossentropy)                       \
  ROW(MeanSquaredError, MeanSquaredError)                           \
  ROW(MeanAbsoluteError, MeanAbsoluteError)                         \
  ROW(Mse, MeanSquaredError)                                        \
  ROW(Mae, MeanAbsoluteError)

#define MT_METRICS(ROW)                                             \
  ROW(Accuracy, Accuracy)                                           \
  ROW(SparseCategoricalAccuracy, SparseCategoricalAccuracy)         \
  ROW(CategoricalAccuracy, CategoricalAccuracy)                     \
  ROW(SparseTopKCategoricalAccuracy, SparseTopKCategoricalAccuracy) \
  ROW(TopKCategoricalAccuracy, TopKCategoricalAccuracy)             \
  ROW(BinaryAccuracy, BinaryAccuracy)                               \
  ROW(Perplexity, Perplexity)                                       \
  ROW(Precision, Precision)                                         \
  ROW(Recall, Recall)                                               \
  ROW(Auc, Auc)                                                     \
  ROW(PrAuc, PrAuc)                                                 \
  ROW(MeanSquaredError, MeanSquaredError)                           \
  ROW(MeanAbsoluteError, MeanAbsoluteError)                         \
  ROW(Mse, MeanSquaredError)                                        \
  ROW(Mae, MeanAbsoluteError)                                       \
  ROW(LabelMean, LabelMean)                                         \
  ROW(PredictionMean, PredictionMean)

#define MT_SOURCES(ROW)         \
  ROW(Idx, Idx)                 \
  ROW(Npy, Npy)                 \
  ROW(ImageFolder, ImageFolder) \
  ROW(Text, Text)

namespace meshtrain::manifest {

#define MT_ENTRY(entry, maker) Entry entry();
namespace layers {
MT_LAYERS(MT_ENTRY)
}
namespace optimizers {
MT_OPTIMIZERS(MT_ENTRY)
}
namespace losses {
MT_LOSSES(MT_ENTRY)
}
namespace metrics {
MT_METRICS(MT_ENTRY)
}
namespace sources {
MT_SOURCES(MT_ENTRY)
}
#undef MT_ENTRY

}  // namespace meshtrain::manifest

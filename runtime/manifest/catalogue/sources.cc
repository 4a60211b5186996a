#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {

const Catalogue& Sources() {
  static const Catalogue kSources = {
      .noun = "source",
      .entries = {
          {.name = "idx",
           .about = "Files as MNIST's, gzipped or not.",
           .options = {field::Required(option::Text("images", {.about = "The file of features.",
                                                               .shows = Shows::kData,
                                                               .sample = "other.gz"})),
                       field::Required(option::Text("labels", {.about = "The file of labels.",
                                                               .shows = Shows::kData,
                                                               .sample = "other.gz"})),
                       option::Word(
                           "labels_as", {"i32", "i64", "f32", "f64"},
                           {.about = "The type of labels. One that it would cut is an error.",
                            .fallback = "the file's, u8 as i32",
                            .shows = Shows::kData,
                            .sample = "i64"})}},
      }};
  return kSources;
}

const Catalogue& MapOps() {
  static const Catalogue kMapOps = {
      .noun = "map operation",
      .entries = {
          {.name = "scale",
           .about = "x times this, in f32 (f64 stays f64).",
           .options = {field::Required(option::Number(
               "scale", {}, {.about = "The factor.", .shows = Shows::kData, .sample = "0.5"}))},
           .direct = true},
          {.name = "normalize",
           .about = "(x - mean) / deviation, in f32 (f64 stays f64).",
           .options = {option::Number("mean", {},
                                      {.about = "What is taken off.",
                                       .fallback = "0",
                                       .shows = Shows::kData,
                                       .sample = "0.5"}),
                       option::Number("deviation", {.not_zero = true},
                                      {.about = "What is divided by.",
                                       .fallback = "1",
                                       .shows = Shows::kData,
                                       .sample = "0.5"})}},
          {.name = "cast",
           .about = "Another type; towards zero, saturating.",
           .options = {field::Required(
               option::Word("cast", {"f32", "f64", "i32", "i64", "u8"},
                            {.about = "The type.", .shows = Shows::kData, .sample = "f64"}))},
           .direct = true},
      }};
  return kMapOps;
}

const Catalogue& Partitioners() {
  static const Catalogue kPartitioners = {
      .noun = "partitioner",
      .entries = {
          {.name = "fixed_shards",
           .about = "Each variable in so many parts.",
           .options = {field::Required(
               option::Int("num_shards", {.least = 1},
                           {.about = "Parts.", .shows = Shows::kServers, .sample = "3"}))}},
          {.name = "min_size",
           .about = "As many parts as leave each large enough.",
           .options = {option::Int("min_shard_bytes", {.least = 1},
                                   {.about = "The least bytes of a part.",
                                    .fallback = "262144",
                                    .shows = Shows::kServers,
                                    .sample = "5"}),
                       option::Int("max_shards", {.least = 1},
                                   {.about = "The most parts.",
                                    .fallback = "1",
                                    .shows = Shows::kServers,
                                    .sample = "3"})}},
          {.name = "max_size",
           .about = "As many parts as make each small enough.",
           .options = {field::Required(option::Int("max_shard_bytes", {.least = 1},
                                                   {.about = "The most bytes of a part.",
                                                    .shows = Shows::kServers,
                                                    .sample = "5"})),
                       option::Int("max_shards", {.least = 1},
                                   {.about = "The most parts.",
                                    .fallback = "any number",
                                    .shows = Shows::kServers,
                                    .sample = "3"})}},
      }};
  return kPartitioners;
}

}  // namespace meshtrain::manifest

#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {

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
                                    .sample = "5",
                                    .context = "{max_shards: 3}"}),
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
                                                    .sample = "64"})),
                       option::Int("max_shards", {.least = 1},
                                   {.about = "The most parts.",
                                    .fallback = "any number",
                                    .shows = Shows::kServers,
                                    .sample = "3"})}},
      }};
  return kPartitioners;
}

}  // namespace meshtrain::manifest

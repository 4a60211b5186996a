#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::sources {

Entry ImageFolder() {
  return {.name = "image_folder",
          .about = "PNG images, all of one size, in a folder for each class.",
          .options = {
              field::Required(field::Path(option::Text(
                  "folder", {.about = "The folder with the classes' folders. Classes are numbered "
                                      "by their names, from 0.",
                             .shows = Shows::kData,
                             .sample = "other"}))),
              option::Word("color_mode", {"grayscale", "rgb", "rgba"},
                           {.about = "What images are made to: 1, 3 or 4 channels.",
                            .fallback = "rgb",
                            .shows = Shows::kData,
                            .sample = "rgba"})}};
}

}  // namespace meshtrain::manifest::sources

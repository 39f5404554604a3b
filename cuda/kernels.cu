// One translation unit, so that the fatbin is one module.
#include "anchor.cu"
#include "kernel_ids.cu"
#include "page_copy.cu"
#include "page_digest.cu"
#include "page_move.cu"
#include "page_stamp.cu"
#include "page_zero.cu"
#include "table_patch.cu"

// One launch of a compiled Triton kernel, as a package of AOTInductor holds it. c_shims.py writes a table of them.
#pragma once
#include <cstdint>

namespace softbench {

struct Launch {
    const unsigned char* cubin;
    const char* kernel;  // its name in the cubin
    int inputs;  // 1 for a forward, 2 for a backward: tensors of `rows` x `columns` elements
    bool log;  // of log_softmax
    int dtype;  // of inputs and result, as PyTorch numbers dtypes
    int architecture;  // that the cubin is for, such as 90
    int64_t rows, columns;
    int64_t row_strides[2];  // elements, of each input
    unsigned programs;
    unsigned ctas;  // of a cluster, which is a program then; 1: no clusters
    unsigned threads;  // of a CTA
    unsigned shared_bytes;  // of a CTA
    int64_t workspace_words;  // int64 words of the counter and the slots; 0: the kernel takes neither
    bool keeps_rows_in_shared_memory;
    int argument_count;
    const int64_t* arguments;  // after the tensors and the workspace; of a 32-bit argument, the kernel reads the low 4 bytes
};

extern const Launch launches[];
extern const int launch_count;
extern const int64_t counter_words;  // words of the workspace before its slots

}  // namespace softbench

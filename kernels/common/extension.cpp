// The extension, in one piece: most of the time goes to torch's headers. `extension.py` says what each file is for, and builds this one.

#if __has_include(<Python.h>)
#include "entry.cpp"
#endif
#include "filter.cpp"
#include "operators.cpp"

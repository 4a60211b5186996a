// A library that is no PJRT plugin.
extern "C" int Nothing() { return 0; }

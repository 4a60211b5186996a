# cmake -DNM=nm -DOBJECTS=a.o;b.o -P kernels_leak.cmake
# Fails when an object of runtime/device/cpu/kernels holds a function that the linker may merge with another file's: code
# for a newer processor would then run on an older one. Only what carries its instruction set in its name may be weak.
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} ${object}: ${failed}")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  foreach(symbol IN LISTS weak)
    if(NOT symbol MATCHES "cpu::v[234]|Eigen_v[234]|cpu::base|Eigen_base|DW\\.ref\\.__gxx_personality_v0|__odr_asan|[Aa]san|tsan")
      message(SEND_ERROR "${object}: a symbol that could be merged: ${symbol}")
    endif()
  endforeach()
endforeach()

"""A kernel that notes what it is called with, and may take its time.

The words of ``args`` are: nanoseconds for each unit, the address of a word for each unit that counts its calls, how
many threads are in the kernel, and how many found another one in their workspace, whose first word is 1 while a thread
is in it.
"""

INTERMEDIATE = """
declare i32 @nanosleep(ptr, ptr)

define void @kernel(ptr %args, i64 %lo, i64 %hi, ptr %workspace) {
entry:
  %time = alloca [2 x i64]
  %counts.at = getelementptr i64, ptr %args, i64 1
  %running.at = getelementptr i64, ptr %args, i64 2
  %shared.at = getelementptr i64, ptr %args, i64 3
  %nanoseconds = load i64, ptr %args
  %counts = load ptr, ptr %counts.at
  %seconds = udiv i64 %nanoseconds, 1000000000
  %rest = urem i64 %nanoseconds, 1000000000
  store i64 %seconds, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  store i64 %rest, ptr %rest.at
  atomicrmw add ptr %running.at, i64 1 seq_cst
  %has.room = icmp ne ptr %workspace, null
  br i1 %has.room, label %occupy, label %check
occupy:
  %before = atomicrmw xchg ptr %workspace, i64 1 seq_cst
  atomicrmw add ptr %shared.at, i64 %before seq_cst
  br label %check
check:
  %i = phi i64 [ %lo, %entry ], [ %lo, %occupy ], [ %next, %count ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %unit, label %vacate
unit:
  %is.slow = icmp ne i64 %nanoseconds, 0
  br i1 %is.slow, label %sleep, label %count
sleep:
  call i32 @nanosleep(ptr %time, ptr null)
  br label %count
count:
  %place = getelementptr i64, ptr %counts, i64 %i
  atomicrmw add ptr %place, i64 1 seq_cst
  %next = add i64 %i, 1
  br label %check
vacate:
  br i1 %has.room, label %leave, label %done
leave:
  store atomic i64 0, ptr %workspace seq_cst, align 8
  br label %done
done:
  atomicrmw sub ptr %running.at, i64 1 seq_cst
  ret void
}
"""


def build(name: str) -> str:
    return INTERMEDIATE

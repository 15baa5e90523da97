"""A kernel in LLVM's own language."""

KERNELS = {
    "increment": """
define void @kernel(ptr %args, i64 %lo, i64 %hi, ptr %workspace) {
entry:
  br label %check
check:
  %i = phi i64 [ %lo, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %place = getelementptr i64, ptr %args, i64 %i
  %old = load i64, ptr %place
  %new = add i64 %old, 1
  store i64 %new, ptr %place
  %next = add i64 %i, 1
  br label %check
done:
  ret void
}
"""
}


def build(name: str) -> str:
    return KERNELS[name]

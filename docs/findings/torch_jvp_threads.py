import threading

import torch

inside, finished, results = threading.Event(), threading.Event(), {}


def first_square(x: torch.Tensor) -> torch.Tensor:
    threading.Thread(target=run, args=("second", second_square)).start()
    inside.wait()
    return x * x


def second_square(x: torch.Tensor) -> torch.Tensor:
    inside.set()
    finished.wait()
    return x * x


def run(name: str, function) -> None:
    try:
        results[name] = torch.func.jvp(function, (torch.tensor(3.0),), (torch.tensor(1.0),))[1].item()
    except RuntimeError as error:
        results[name] = f"RuntimeError: {str(error).partition('.')[0]}"
    inside.set()
    finished.set()


run("first", first_square)
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
print("first thread", results["first"])
print("second thread", results["second"])
print("fixed" if results == {"first": 6, "second": 6} else "not fixed")

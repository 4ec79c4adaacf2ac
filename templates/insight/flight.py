# What PyTorch's flight recorder has written of ranks: `flight RANK BASE64`, of JSON, for each.
# Arguments: RANK FILE, as often as wanted. The files are pickles of plain values, and nothing else
# is loaded from them: a program may have written anything.
import base64
import json
import pickle
import sys

LAST = 40  # calls of each process group


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(module + "." + name + " is no plain value")


def read(path):
    # By process group: its ranks, and its latest collectives: [number, name, sizes, whether done].
    with open(path, "rb") as file:
        found = Plain(file).load()
    groups = {}
    for group in found.get("pg_config", {}).values():
        if not group["name"]:  # Gloo's default group has no name here, but in its calls
            continue
        ranks = [int(word) for word in group["ranks"].strip("[]").split(",") if word.strip()]
        groups[group["name"]] = {"title": group["desc"], "ranks": ranks, "calls": []}
    for entry in found["entries"]:
        name, title = entry["process_group"]
        if not entry.get("is_p2p"):
            group = groups.setdefault(name, {"title": title, "ranks": [], "calls": []})
            what = entry["profiling_name"].rpartition(":")[2]
            done = entry["state"] == "completed" or entry["retired"]  # Gloo's are only retired
            number, sizes = entry["collective_seq_id"], entry["input_sizes"]
            group["calls"].append([number, what, sizes, done])
    for group in groups.values():
        group["calls"] = sorted(group["calls"])[-LAST:]
    return groups


words = sys.argv[1:]
while words:
    rank, path, *words = words
    try:
        told = base64.b64encode(json.dumps(read(path)).encode()).decode()
    except Exception:  # half written, or something else's
        continue
    print("flight", rank, told)

"""Downloads files into a data folder. Runs on a node, or on the user's machine, with its Python.

Reads one line of JSON from stdin, which may hold secrets: they are in no file and no command line.
    {"root": FOLDER, "name": NAME, "files": [{"path", "url", "size", "sha256", "headers"}]}
Prints lines of JSON: {"progress": [PATH, BYTES, ALL]}, {"note": TEXT}, and at last {"done": [[PATH,
SIZE, SHA256], ...]} or {"error": TEXT, "unreachable": whether nothing could be asked at all}.

What broke off is gone on with: NAME lies unfinished in .NAME.download until all of it is there.
"""

import errno
import hashlib
import http.client
import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 5  # in a row that bring nothing
RESERVE = 50_000_000  # bytes that stay free
BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


class Failed(Exception):
    """What a person is told."""


class Unreachable(Failed):
    """The first server does not answer this machine at all: another one may do better."""


class Redirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was asked, not for the storage that it sends us to."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is None:
            return None
        old, target = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (old.scheme, target.scheme) == ("https", "http"):
            raise Failed("the server redirects from https to http")
        if old.netloc != target.netloc:
            for name in ("Authorization", "Cookie"):
                new.remove_header(name)
        return new


def say(**what):
    try:
        print(json.dumps(what), flush=True)
    except BrokenPipeError:  # nobody waits for it any more
        os._exit(1)


def take_proxies(path="/etc/environment"):
    """Those that the node's administrator has set: a command over SSH may not have them."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.strip().partition("=")
        name = name.replace("export ", "").strip()
        if name.lower() in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
            os.environ.setdefault(name, value.strip("\"'"))


def place(url):
    """A URL without what may be secret in it."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


def why(error):
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__


def check_space(root, needed):
    free = shutil.disk_usage(root).free
    if needed + RESERVE > free:
        wanted, there = needed // 1_000_000 + 1, free // 1_000_000
        raise Failed(f"{wanted:,} MB are needed and {there:,} MB are free in {root}")


def fresh(wanted, path, old, known, opener):
    """Whether an earlier download is this file still, as far as its server tells."""
    record = known.get(wanted["path"])
    if not record or not os.path.isfile(old) or os.path.getsize(old) != record["size"]:
        return False
    if wanted["sha256"]:
        return record["sha256"] == wanted["sha256"]
    if not record.get("etag"):
        return False
    headers = {**wanted["headers"], "If-None-Match": record["etag"]}
    try:
        opener.open(urllib.request.Request(wanted["url"], headers=headers), timeout=TIMEOUT).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 304
    return False


def read_etag(part):
    try:
        with open(part + ".etag", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def request(wanted, part, opener):
    """The answer, how much of the file is here before it, and how large all of it is (or 0)."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    headers = {"Accept-Encoding": "identity", **wanted["headers"]}
    if have:
        etag = read_etag(part)
        if etag:
            headers["If-Range"] = etag
        if etag or wanted["sha256"]:  # else it may be another file by now
            headers["Range"] = f"bytes={have}-"
    answer = opener.open(urllib.request.Request(wanted["url"], headers=headers), timeout=TIMEOUT)
    if answer.status != 206:
        have = 0
    length = answer.headers.get("Content-Length")
    size = have + int(length) if length and length.isdigit() else 0
    return answer, have, size


def receive(wanted, part, opener, total):
    """One attempt: returns the ETag. Raises what urllib raises, and Failed."""
    answer, have, size = request(wanted, part, opener)
    with answer:
        etag = answer.headers.get("ETag", "")
        if etag and not etag.startswith("W/"):
            with open(part + ".etag", "w", encoding="utf-8") as file:
                file.write(etag)
        wanted_size = wanted["size"] or size
        if size and wanted["size"] and size != wanted["size"]:
            raise Failed(
                "it has {:,} bytes there, and should have {:,}".format(size, wanted["size"])
            )
        if total is None:
            check_space(os.path.dirname(part), size - have)
        told = 0.0
        with open(part, "ab" if have else "wb") as file:
            while True:
                data = answer.read(CHUNK)
                if not data:
                    break
                file.write(data)
                have += len(data)
                if time.monotonic() - told > 0.5:
                    told = time.monotonic()
                    say(progress=[wanted["path"], have, wanted_size])
        if wanted_size and have != wanted_size:
            raise http.client.IncompleteRead(b"", wanted_size - have)
        say(progress=[wanted["path"], have, wanted_size or have])
    return etag


def attempt(wanted, part, opener, total, first):
    """As `receive`, until it succeeds or brings nothing more."""
    failures = 0
    while True:
        before = os.path.getsize(part) if os.path.exists(part) else 0
        try:
            return receive(wanted, part, opener, total)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and before:
                if error.headers.get("Content-Range", "") == f"bytes */{before}":
                    return read_etag(part)  # all of it was here
                os.unlink(part)  # another file by now
            elif error.code not in (408, 429, 500, 502, 503, 504):
                raise
            problem = error
        except BROKEN as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise Failed(f"the disk is full: {os.path.dirname(part)}") from error
            if first and not os.path.exists(part):
                raise Unreachable(f"cannot be downloaded: {why(error)}") from error
            problem = error
        now = os.path.getsize(part) if os.path.exists(part) else 0
        failures = failures + 1 if now <= before else 1
        if failures >= ATTEMPTS:
            raise problem
        say(note="{}: {}; trying again".format(wanted["path"], why(problem)))
        time.sleep(min(8, 2 ** (failures - 1)))


def read_sha256(path):
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            data = file.read(CHUNK)
            if not data:
                return whole.hexdigest()
            whole.update(data)


def get(wanted, folder, old, known, opener, total, first):
    """One file, in `folder`: its record."""
    path = os.path.join(folder, "files", wanted["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    record = known.get(wanted["path"])
    before = os.path.join(old, wanted["path"])
    if not os.path.exists(path) and fresh(wanted, path, before, known, opener):
        os.link(before, path)
        say(progress=[wanted["path"], record["size"], record["size"]])
        return record
    part = os.path.join(folder, hashlib.sha1(wanted["path"].encode()).hexdigest() + ".part")
    if os.path.exists(path):  # by an earlier call, which was cut off later
        os.replace(path, part)
    etag = ""
    if not (wanted["size"] and os.path.exists(part) and os.path.getsize(part) == wanted["size"]):
        etag = attempt(wanted, part, opener, total, first)
    else:
        etag = read_etag(part)
    sha256 = read_sha256(part)
    size = os.path.getsize(part)
    if wanted["sha256"] not in ("", sha256):
        os.unlink(part)
        raise Failed("its checksum is {}, and should be {}".format(sha256, wanted["sha256"]))
    os.replace(part, path)
    return {"size": size, "sha256": sha256, "etag": etag}


def download(root, name, files, opener):
    folder, target = os.path.join(root, "." + name + ".download"), os.path.join(root, name)
    listing = os.path.join(root, "." + name + ".files")
    os.makedirs(os.path.join(folder, "files"), exist_ok=True)
    try:
        with open(listing, encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        known = {}
    total = None
    if all(wanted["size"] for wanted in files):
        total = sum(wanted["size"] for wanted in files)
        there = sum(
            os.path.getsize(os.path.join(base, file))
            for top in (folder, target)
            for base, _, found in os.walk(top)
            for file in found
        )
        check_space(root, max(0, total - there))
    records = {}
    for number, wanted in enumerate(files):
        try:
            records[wanted["path"]] = get(wanted, folder, target, known, opener, total, number == 0)
        except urllib.error.HTTPError as error:
            text = f"the server answered {error.code} {error.reason}"
            raise Failed("{}: {}".format(place(wanted["url"]), text)) from error
        except Failed as error:
            raise type(error)("{}: {}".format(place(wanted["url"]), error)) from error
        except BROKEN as error:
            if getattr(error, "filename", None):  # a file here, not the server
                raise
            text = "{}: cannot be downloaded: {}".format(place(wanted["url"]), why(error))
            raise Failed(text) from error
    done = os.path.join(folder, "files")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(done, target)
    with open(listing, "w", encoding="utf-8") as file:
        json.dump(records, file)
    shutil.rmtree(folder, ignore_errors=True)
    return [[path, record["size"], record["sha256"]] for path, record in records.items()]


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    order = json.loads(sys.stdin.readline())
    take_proxies()
    opener = urllib.request.build_opener(Redirect)
    try:
        say(done=download(order["root"], order["name"], order["files"], opener))
    except Failed as error:
        say(error=str(error), unreachable=isinstance(error, Unreachable))
    except OSError as error:
        say(error=f"{error.filename}: {error.strerror}", unreachable=False)


main()

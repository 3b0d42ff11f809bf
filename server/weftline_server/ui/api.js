// Talks to the server that sent this page, with the key that the user gave for this tab.

const KEY = "weftline-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The server did not answer, or its answer broke off. An error of this page is none of these.
export class Unreachable extends Error {}

const reached = async (answer) => {
  try {
    return await answer;
  } catch (error) {
    throw new Unreachable(error.message);
  }
};

export const key = () => sessionStorage.getItem(KEY);
export const setKey = (given) => sessionStorage.setItem(KEY, given);

function headers() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

async function open(path, signal) {
  const response = await reached(fetch(path, { headers: headers(), signal, cache: "no-store" }));
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(response.status, body?.error?.message ?? `the server answered ${response.status}`);
}

export const get = async (path, signal) => reached((await open(path, signal)).json());

// Yields the data of each server-sent event. EventSource cannot send a key, so fetch reads it.
export async function* events(path, signal) {
  const response = await open(path, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reached(reader.read());
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").find((line) => line.startsWith("data: "));
        if (data) yield JSON.parse(data.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // a reader that leaves early ends the request
  }
}

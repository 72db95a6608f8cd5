// Rows of messages as they come, newest first. Rule: what is in a message becomes text, never markup.
"use strict";

const ROWS_MAX = 500;

function counted(count) {
  return count === 1 ? "1 message" : `${count} messages`;
}

function rowOf(found) {
  const row = document.createElement("tr");
  for (const name of ["time", "place", "tag", "keys", "body"]) {
    const cell = document.createElement("td");
    if (name === "place") {
      const link = document.createElement("a");
      link.href = found.to;
      link.textContent = found.place;
      cell.append(link);
    } else {
      cell.textContent = found[name];
    }
    if (name === "place" || name === "body") cell.className = "code";
    row.append(cell);
  }
  return row;
}

for (const panel of document.querySelectorAll("[data-tail]")) {
  const state = panel.querySelector("[data-tail-state]");
  const rows = panel.querySelector("[data-tail-rows]");
  const stop = panel.querySelector("[data-tail-stop]");
  const source = new EventSource(panel.dataset.tail);
  let count = 0;
  const tell = () => { state.textContent = `${counted(count)} came`; };
  source.addEventListener("ready", tell);
  source.addEventListener("came", (event) => {
    rows.prepend(rowOf(JSON.parse(event.data)));
    while (rows.children.length > ROWS_MAX) rows.lastElementChild.remove();
    count += 1;
    tell();
  });
  source.addEventListener("trouble", (event) => { state.textContent = JSON.parse(event.data).text; });
  source.onerror = () => {
    state.textContent = source.readyState === EventSource.CLOSED ? "It cannot be watched" : "Connecting again …";
  };
  stop.addEventListener("click", () => {
    source.close();
    stop.disabled = true;
    state.textContent = `Stopped after ${counted(count)}`;
  });
}

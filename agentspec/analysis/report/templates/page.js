// All that the page works without: copying, and open tables in print.
"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  const label = button.firstChild;
  const said = label.data;
  button.hidden = false;
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(source);
    let copied = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      copied = true;
    } catch {
      copied = document.execCommand("copy");
    }
    label.data = copied ? "Copied" : "Selected: press Ctrl+C";
    document.getElementById("said").textContent = label.data;
    setTimeout(() => { label.data = said; }, 2000);
  });
}
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});

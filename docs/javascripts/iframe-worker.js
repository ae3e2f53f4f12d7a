// Search on pages that are opened from the disk: browsers start no worker there, so its script runs in a hidden frame.
// Material's plug-in `offline` writes the index as a script and looks for a class of this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = (this.inside = frame.contentWindow);
      const page = inside.document;
      page.open();
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      page.write("<!doctype html><html><body></body></html>");
      page.close();
      this.load(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}

// Drives the Go client: one JSON command a line on stdin, one JSON answer a line on stdout.
//
// {"id": 1, "command": "send", ...} is answered by {"id": 1, "result": {...}} or {"id": 1, "error": {...}}.
// Commands run side by side, so that a waiting one holds up no other. End of stdin ends the process.
// Names of commands and of their arguments are those of the Java driver.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type command func(args arguments) (any, error)

var commands = map[string]command{
	"ping": func(arguments) (any, error) { return map[string]any{"client": "go"}, nil },
}

// The client formats the broker's code into its text, and has no field for it.
var codeInText = regexp.MustCompile(`(?i:code): (-?\d+)`)

func answer(line []byte) (reply map[string]any) {
	var args arguments
	if err := json.Unmarshal(line, &args.raw); err != nil {
		return map[string]any{"id": 0, "error": failure(err)}
	}
	reply = map[string]any{"id": args.raw["id"]}
	defer func() {
		if trouble := recover(); trouble != nil {
			reply["error"] = failure(fmt.Errorf("panic: %v", trouble))
		}
	}()
	run, known := commands[args.text("command")]
	if !known {
		reply["error"] = failure(fmt.Errorf("no command %s", args.text("command")))
		return reply
	}
	result, err := run(args)
	if err != nil {
		reply["error"] = failure(err)
	} else {
		reply["result"] = result
	}
	return reply
}

func failure(err error) map[string]any {
	code := -1
	if found := codeInText.FindStringSubmatch(err.Error()); found != nil {
		code, _ = strconv.Atoi(found[1])
	}
	return map[string]any{"type": fmt.Sprintf("%T", err), "message": err.Error(), "code": code}
}

func main() {
	answers := os.Stdout
	os.Stdout = os.Stderr // Whatever the client prints must not mix with the answers.
	rlog.SetLogLevel("warn")
	var writing sync.Mutex
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0) // The client's own goroutines need no farewell.
		}
		go func() {
			text, err := json.Marshal(answer(line))
			if err != nil {
				panic(err)
			}
			writing.Lock()
			defer writing.Unlock()
			answers.Write(append(text, '\n'))
		}()
	}
}

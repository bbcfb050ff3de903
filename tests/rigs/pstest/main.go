// Serves Google's in-memory Pub/Sub server for tests on a free loopback port, until it is killed.
package main

import (
	"fmt"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	server := pstest.NewServerWithPort(0)
	fmt.Printf("export PUBSUB_EMULATOR_HOST=%s\n", server.Addr)
	select {}
}

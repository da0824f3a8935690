// Opens connections that are closed while they publish: closing PORT COUNT. Prints how many of the closes failed, and why.

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

func closed(url string) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	if _, err = channel.QueueDeclare("", false, true, true, false, nil); err != nil {
		return fmt.Errorf("declare: %w", err)
	}
	started, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for number := 0; ; number++ {
			message := amqp.Publishing{Body: make([]byte, 1000)}
			if channel.PublishWithContext(context.Background(), "", "nowhere", false, false, message) != nil {
				return // The connection is closed by now.
			}
			if number == 100 {
				close(started)
			}
		}
	}()
	<-started
	err = connection.Close()
	<-ended
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func main() {
	url := "amqp://guest:guest@127.0.0.1:" + os.Args[1]
	count, _ := strconv.Atoi(os.Args[2])
	failures := make(chan error, count)
	var group sync.WaitGroup
	for number := 0; number < count; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := closed(url); err != nil {
				failures <- err
			}
		}()
	}
	group.Wait()
	close(failures)
	failed := 0
	for err := range failures {
		failed++
		fmt.Println(err)
	}
	fmt.Printf("%d of %d failed\n", failed, count)
	if failed > 0 {
		os.Exit(1)
	}
}
